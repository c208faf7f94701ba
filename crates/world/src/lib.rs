//! The only door to the machine: time, chance, tasks, disks; each real and simulated.
