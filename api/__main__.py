"""``python -m sheafgossip`` is the command ``sheafgossip``."""

from .launcher.entry import main

if __name__ == "__main__":
    main()
