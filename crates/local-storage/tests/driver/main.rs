//! The driver over its socket, with real loop devices and mounts. Needs root, loop devices and e2fsprogs.

mod host;
mod hostile;
mod volumes;
