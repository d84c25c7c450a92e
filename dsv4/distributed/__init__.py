"""One model over several processes, a stage each: how they find, feed and watch each other."""
