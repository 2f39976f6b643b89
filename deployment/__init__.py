"""The only layer that knows the environment: settings, embedded services, migrations, the command line, the wiring."""
