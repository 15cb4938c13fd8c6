"""Rows of the files of a Delta table. Knows no log: tasks that read need no delta-rs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.sources.parquetrows import ParquetFormat


@dataclass(frozen=True, slots=True)
class DeltaFormat(ParquetFormat):
    """Rows as of Parquet, with the columns of the table, or some of them: what a file has not is null.

    `partitions`: file -> the values of its partition columns, which are in no file.
    """

    partitions: Mapping[str, Mapping[str, Any]]

    def stored(self, file: Any) -> list[str]:
        return [name for name in self.columns if name in file.names and name not in self._constant]

    def whole(self, batch: Any, path: str) -> Any:
        constants = self.partitions[path]
        arrays = [self._array(field, batch, constants) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @property
    def _constant(self) -> frozenset[str]:
        return frozenset(next(iter(self.partitions.values()), {}))

    @staticmethod
    def _array(field: Any, batch: Any, constants: Mapping[str, Any]) -> Any:
        if field.name in constants:
            return pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        # Spark stores times in nanoseconds, of which the table counts micros.
        return batch.column(field.name).cast(field.type, safe=not pa.types.is_timestamp(field.type))
