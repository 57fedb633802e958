"""Mixed load, clients that leave, engines that die: minutes of it, after which nothing may be left behind."""
