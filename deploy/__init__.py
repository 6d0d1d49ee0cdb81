"""The recipe of DeepSeek V4 Flash with DSpark on AMD MI-series, and the plan that it makes."""
