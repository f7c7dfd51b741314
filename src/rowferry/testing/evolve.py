"""What a schema change does to rows: the model and the rebuild of the kit share these rules."""

from __future__ import annotations

from rowferry.downstream.rebuild.evolve import column_origins as column_origins
from rowferry.downstream.rebuild.evolve import convert_array as convert_array
from rowferry.downstream.rebuild.evolve import convert_value as convert_value
from rowferry.downstream.rebuild.evolve import default_value as default_value
from rowferry.downstream.rebuild.evolve import refuse_unmodelled as refuse_unmodelled
from rowferry.downstream.rebuild.evolve import renamed_columns as renamed_columns
