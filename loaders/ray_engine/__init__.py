"""The work of the loaders on other machines, with Ray (extra ``ray``). Nothing else imports ray."""
