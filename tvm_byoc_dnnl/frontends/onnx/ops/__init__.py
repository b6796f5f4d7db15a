"""The entries of the table, one file for each family of operators."""

import importlib
import pkgutil

#: every module here declares its entries when it is imported
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
