//! Composes the layers and owns volumes. A [`Controller`] is one thread's; a [`Node`] joins the controllers of a pool
//! and may be used from any thread.

mod controller;
mod door;
mod info;
mod node;

pub use controller::Controller;
pub use door::{Door, Inbox, door};
pub use info::{
    CheckReport, ControllerInfo, DiskClass, DiskInfo, DiskState, Layout, PoolInfo, VolumeInfo, VolumeSpec,
};
pub use node::Node;
