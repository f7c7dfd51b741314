"""One validator for each promise; each must fail on a feed that breaks it."""

from rowferry.testing.validators.before import BeforeImagesTrue
from rowferry.testing.validators.composite import AllPromises
from rowferry.testing.validators.converge import ClusterRow, ClustersConverge
from rowferry.testing.validators.delivery import NothingLostOrInvented
from rowferry.testing.validators.layout import StorageLayout
from rowferry.testing.validators.oracle import DeliveryOracle, ExpectedChange, SnapshotWindow
from rowferry.testing.validators.order import PerKeyOrder
from rowferry.testing.validators.rebuilt import RebuildMatches, SnapshotMeetsLog
from rowferry.testing.validators.validator import Validator
from rowferry.testing.validators.version import RightVersions
from rowferry.testing.validators.watermark import WatermarkHolds

__all__ = [
    "AllPromises",
    "BeforeImagesTrue",
    "ClusterRow",
    "ClustersConverge",
    "ExpectedChange",
    "NothingLostOrInvented",
    "DeliveryOracle",
    "PerKeyOrder",
    "RebuildMatches",
    "RightVersions",
    "SnapshotMeetsLog",
    "SnapshotWindow",
    "StorageLayout",
    "Validator",
    "WatermarkHolds",
]
