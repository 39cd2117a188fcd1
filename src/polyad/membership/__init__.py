"""Mixed membership models of categorical and other columns, from their moments (PTPQP)."""
