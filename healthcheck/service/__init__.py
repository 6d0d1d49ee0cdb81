"""The health service: watches one server, keeps the verdict, and answers for it."""
