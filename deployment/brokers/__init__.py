"""Brokers on this machine, for demos, drills and tests: `embedded_broker` needs nothing else, `apache_kafka` a JDK."""
