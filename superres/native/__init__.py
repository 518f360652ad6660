"""The engine of compiled C++ for CPUs."""
