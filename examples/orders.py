"""Totals per customer of orders that two shops send while the job runs, one of which is killed and sends again.

    celeriac run examples/orders.py --redis redis://localhost:6379/0 --job-id orders
    CELERIAC_REDIS=redis://localhost:6379/0 python examples/programs/send_orders.py orders    # in another terminal

The first command runs until Ctrl-C, and then writes out/totals/part-*.csv. Until then `celeriac tail orders` shows the
running totals, and `celeriac state get orders running_total c07` those of one customer.
"""

from pipeline import Pipeline, count, read, total, write

flow = Pipeline("orders")
orders = flow.source(read.producer(), name="orders")
running = orders.key_by("customer", name="customer").aggregate(
    orders=count(), cents=total("cents"), name="running_total"
)
running.sink(write.stream("totals"), name="totals")
running.last(name="final_total").sink(write.csv("out/totals"), name="table")
