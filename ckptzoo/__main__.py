"""``python -m ckptzoo`` is ``ckptzoo``."""

from ckptzoo.cli import main

if __name__ == "__main__":
    main()
