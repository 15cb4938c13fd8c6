"""Rows of a database, copied by Spark into Parquet files, which readers without Spark read then."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from pipeline.errors import CeleriacError, EnvironmentFault, InputError
from pipeline.graph import SourceSpec
from pipeline.sources.jdbcaddress import JdbcAddress
from pipeline.sources.parquetrows import is_supported
from pipeline.sources.snapshots import new_copy
from pipeline.spark.bulk.connecting import tuned
from pipeline.spark.bulk.faults import words_of

_WRITING: Final = {
    # By default times are numbers of nanoseconds in a form of old, which ends with the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
}

_ROWS_AT_ONCE: Final = "1000"
"""What a driver asks for at once. With its own default the one of PostgreSQL holds the whole table in memory."""

_GROUP_BYTES: Final = 8 << 20
"""Of rows that a file is read by: as much as a split has."""

_DIALECTS: Final = (
    *("jdbc:databricks", "jdbc:db2", "jdbc:derby", "jdbc:h2", "jdbc:mysql"),
    *("jdbc:oracle", "jdbc:postgresql", "jdbc:snowflake", "jdbc:sqlserver", "jdbc:teradata"),
)
"""How addresses begin of the databases whose SQL Spark knows."""

_NO_DRIVER: Final = ("No suitable driver", "ClassNotFoundException", "DriverWrapper")
"""The last is what Spark takes for the class where a read before has named one for such addresses, this one none."""
_NO_TYPE: Final = "UNRECOGNIZED_SQL_TYPE"
_TIME: Final = "logical_time_type"
"""What Spark says of a column of times of day, which it takes for times in 1970."""


_log = logging.getLogger(__name__)


def copy_table(session: SparkSession, spec: SourceSpec, owner: str) -> str:
    """Copies all rows of a `read.jdbc` for the owner, and gives the name of the copy. Only while `copying`.

    Raises InputError for what the database refuses, and for a column that no record can hold; EnvironmentFault for a
    driver or a variable that is missing. None shows a password.
    """
    address = JdbcAddress.of(spec)
    _log.info("copying %s of %s to %s", spec.options["table"], address.shown, spec.options["staging"])
    try:
        with tuned(session, _WRITING):
            rows = _readable(session, spec, address)
            write = rows.write.option("parquet.block.size", _GROUP_BYTES).mode("overwrite")
            return new_copy(spec.options["staging"], owner, lambda folder: write.parquet(f"file://{folder}"))
    except (PySparkException, Py4JError) as error:
        raise _told(session, error, spec, address) from None  # what it says may hold the password


def _readable(session: SparkSession, spec: SourceSpec, address: JdbcAddress) -> DataFrame:
    """The rows as records can hold them. The database is asked for the columns only."""
    options = _options(spec, address)
    if not address.url.lower().startswith(_DIALECTS):
        _check_names(session, options, address)
    rows = session.read.format("jdbc").options(**options, **_ranges(spec)).load()
    fields = list(rows.schema)
    for field in fields:
        if not _is_carried(field.dataType):
            raise _no_form(spec, address, repr(field.name), field.dataType.simpleString())
    if any(isinstance(field.dataType, T.TimestampType | T.TimestampNTZType) for field in fields):
        _check_zone(session)
    return rows.toDF(*(f"c{place}" for place in range(len(fields)))).select(*_columns(fields))


def _columns(fields: list[T.StructField]) -> Iterator[Column]:
    """By place, as Spark cannot address every name."""
    for place, field in enumerate(fields):
        column = F.col(f"c{place}")
        if field.metadata.get(_TIME):
            # As ISO text, and with a fraction only where there is one, as `read.sql` has it.
            whole = F.date_format(column, "HH:mm:ss")
            exact = F.date_format(column, "HH:mm:ss.SSSSSS")
            column = F.when(F.endswith(exact, F.lit(".000000")), whole).otherwise(exact)
        yield column.alias(field.name)


def _options(spec: SourceSpec, address: JdbcAddress) -> dict[str, str]:
    table = spec.options["table"].strip()
    if any(char.isspace() for char in table):
        table = f"({table.rstrip('; ')}) celeriac_rows"
    found = dict(address.properties)
    if "fetchsize" not in map(str.lower, found):
        found["fetchsize"] = _ROWS_AT_ONCE
    found |= {"url": address.url, "dbtable": table}
    if spec.options["driver"]:
        found["driver"] = spec.options["driver"]
    return found


def _ranges(spec: SourceSpec) -> dict[str, str]:
    if not spec.options["ranges"]:
        return {}
    column, lower, upper, partitions = spec.options["ranges"]
    return {"partitionColumn": column, "lowerBound": lower, "upperBound": upper, "numPartitions": str(partitions)}


def _check_names(session: SparkSession, options: Mapping[str, str], address: JdbcAddress) -> None:
    """Raises InputError for a database that takes a name in double quotes, as Spark writes it, for a text.

    MariaDB and Hive do: each of their rows would be the names of its columns.
    """
    check = f"SELECT CASE WHEN COUNT(*) = 0 THEN 'right' END AS celeriac_check FROM {options['dbtable']} WHERE 1 = 0"
    asked = {**options, "dbtable": f"({check}) celeriac_checked"}
    found = session.read.format("jdbc").options(**asked).load().first()
    if found is None or found[0] != "right":
        raise InputError(
            f'the database {address.shown} takes "names" in double quotes for texts, so every value would be the name'
            " of its column",
            hint="for MariaDB write jdbc:mysql://host/name?permitMysqlScheme in the place of jdbc:mariadb://host/name;"
            " Spark has no dialect for this database",
        )


def _is_carried(kind: T.DataType) -> bool:
    try:
        return is_supported(to_arrow_type(kind, timezone="UTC"))
    except PySparkException:
        return False


def _check_zone(session: SparkSession) -> None:
    """Drivers give times in the zone of their JVM, where some hours of summer time are none."""
    found = session.range(1).select(F.reflect(F.lit("java.util.TimeZone"), F.lit("getDefault"))).first()
    zone = str(found[0]) if found is not None else ""
    if 'id="UTC"' not in zone and 'id="GMT"' not in zone and 'id="Etc/UTC"' not in zone:
        name = zone.partition('id="')[2].partition('"')[0] or zone
        raise EnvironmentFault(
            f"Spark's Java has the time zone {name}, and times of a database would be read wrongly",
            hint="add -Duser.timezone=UTC to spark.driver.extraJavaOptions and spark.executor.extraJavaOptions",
        )


def _told(session: Any, error: Exception, spec: SourceSpec, address: JdbcAddress) -> CeleriacError:
    words = _words(error)
    if any(sign in words or sign in str(error) for sign in _NO_DRIVER):
        return EnvironmentFault(
            f"Spark has no JDBC driver for {address.shown}",
            hint="give it the jar and name the class in it: --conf spark.jars=/path/driver.jar, and driver='its.Class';"
            " a Connect server or cluster needs the jar itself",
        )
    if _NO_TYPE in words:
        kind = words.partition("name: ")[2].partition(", id:")[0]
        return _no_form(spec, address, _column_of(session, kind, spec, address), kind)
    return InputError(
        f"the database {address.shown} cannot be read ({spec.options['table']}): {address.without_secrets(words)}",
        hint="check the table or query, the address, and the rights and the password of the user",
    )


def _no_form(spec: SourceSpec, address: JdbcAddress, column: str, kind: str) -> InputError:
    return InputError(
        f"{spec.options['table']} of {address.shown}: the column {column} is of the type {kind}, which no record can"
        " hold",
        hint="leave it out or cast it, by a query: read.jdbc(url, 'SELECT a, CAST(b AS VARCHAR(100)) b FROM t', ...)",
    )


def _words(error: Exception) -> str:
    """What the database has said: the message of the innermost cause, where it is told."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found = ""
    while cause is not None:
        found, cause = str(cause.getMessage() or found), cause.getCause()
    return " ".join((found or words_of(error)).split("\n")[0].split())


def _column_of(session: Any, kind: str, spec: SourceSpec, address: JdbcAddress) -> str:
    """The columns of a type that Spark does not know, of which it tells no name. A Connect session does not either."""
    jvm = getattr(session, "_jvm", None)
    if jvm is None:
        return "with an unknown name"
    jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc
    options = jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(_options(spec, address)))
    dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(address.url)
    connection = dialect.createConnectionFactory(options).apply(-1)
    try:
        query = dialect.getSchemaQuery(options.tableOrQuery())
        about = connection.prepareStatement(query).executeQuery().getMetaData()
        places = range(1, about.getColumnCount() + 1)
        return ", ".join(repr(about.getColumnLabel(n)) for n in places if about.getColumnTypeName(n) == kind)
    finally:
        connection.close()
