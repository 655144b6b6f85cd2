"""What a zoo is: architecture, symmetry table, card, metadata columns, layout. Standard library only."""
