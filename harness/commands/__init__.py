"""The commands of fm, one family a module; what a command needs is imported when it runs."""
