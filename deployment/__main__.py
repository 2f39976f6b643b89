"""`python -m deployment` is `finaz`: how a supervisor starts its components with the interpreter that runs itself."""

from deployment.cli import main

if __name__ == "__main__":
    main()
