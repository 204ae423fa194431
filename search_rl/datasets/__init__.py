"""Question files and the data set that the project makes itself."""
