"""Pages that are played from their first to their last line."""

from __future__ import annotations

import pytest

from tests.docs.pages import DOCS, Block, blocks_of
from tests.docs.story import Story, missing

pytestmark = pytest.mark.timeout(300)


def test_the_tutorial_goes_as_it_says(story: Story) -> None:
    story.play(blocks_of(DOCS / "tutorial.md"))


def test_a_celery_application_and_a_job_share_one_redis_as_the_page_says(story: Story) -> None:
    story.play(blocks_of(DOCS / "from-celery.md"))


@pytest.mark.parametrize("shown", ["a: 2\n", "b: 1\na: 1\n"])
def test_a_page_that_shows_another_output_is_noticed(story: Story, shown: str) -> None:
    commands = Block("page.md", 1, "", "sh", "echo a: 1; echo b: 1")

    story.play([commands, Block("page.md", 3, "prints", "text", "a: 1\nb: 1\n")])
    with pytest.raises(AssertionError, match=r"page\.md:3 says"):
        story.play([commands, Block("page.md", 3, "prints", "text", shown)])


def test_a_command_that_fails_is_noticed(story: Story) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:1 ended with 3"):
        story.play([Block("page.md", 1, "", "sh", "(exit 3)\ntrue\n")])


def test_lines_in_any_order_are_each_needed_once() -> None:
    assert missing(["a", "a"], "a\nb", in_order=False) == ["a"]
    assert missing(["b", "a"], "a\nb", in_order=False) == []
