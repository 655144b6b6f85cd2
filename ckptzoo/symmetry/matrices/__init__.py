"""The linear algebra of groups that act by matrices: arrays in, matrices out, nothing known of tables or tensors."""
