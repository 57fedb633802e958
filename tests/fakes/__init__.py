"""Real servers for tests: engines that do exactly what a case needs."""
