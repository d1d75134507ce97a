"""Load the plugin from this checkout; harmless where perfsuite is installed as well."""

pytest_plugins = ["perfsuite.plugin"]
