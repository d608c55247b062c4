"""Where images come from: parquet files, class folders, the data sets' own files, the Hugging Face hub."""
