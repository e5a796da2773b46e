//! Two network namespaces of this machine with a link between them that has a rate and a delay.
//!
//! ```text
//!   namespace "near" ── TUN ──> relay: rate, then delay ──> TUN ── namespace "far"      and the same the other way
//! ```
//! What goes over it are the kernel's own TCP connections, with their windows and their slow start. Packets are jumbo frames,
//! so that the relay takes little of the machine that both ends are on.

use crate::janitor::Janitor;
use crate::shell;
use anyhow::{Context, Result, bail};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use tappers::{Interface, Tun};

/// Bytes of a packet at most.
const MTU: usize = 9000;
/// Packets that may be on their way in one direction: far more than rate times delay.
const PACKETS: usize = 1 << 14;

/// The address of the far namespace, as the near one reaches it.
pub const ADDRESS: &str = "10.77.0.2";

/// Both namespaces; they go when it is dropped, or however else this process ends.
pub struct Far {
    /// Their names: the near one's, the far one's.
    namespaces: [String; 2],
    _janitor: Janitor,
}

impl Far {
    /// Makes them, with a link of so many bytes a second each way, which take so long one way.
    pub fn new(bytes_per_s: f64, delay: Duration) -> Result<Self> {
        if !shell::is_root() {
            bail!("network namespaces want root");
        }
        let name = |side: &str| format!("kura-{side}-{}", std::process::id());
        let namespaces = ["near", "far"].map(name);
        let mut janitor = Janitor::new()?;
        let near_end = end(&mut janitor, &namespaces[0], "kuranear0", "10.77.0.1")?;
        let far_end = end(&mut janitor, &namespaces[1], "kurafar0", ADDRESS)?;
        for (from, to) in [(&near_end, &far_end), (&far_end, &near_end)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let (sender, under_way) = sync_channel(PACKETS);
            std::thread::spawn(move || arrive(&under_way, &to));
            // Ends when the namespace goes, and the interface with it.
            std::thread::spawn(move || {
                let mut packet = vec![0; 1 << 16];
                let mut free_at = Instant::now();
                while let Ok(len) = from.recv(&mut packet) {
                    free_at = free_at.max(Instant::now()) + Duration::from_secs_f64(len as f64 / bytes_per_s);
                    if sender.send((free_at + delay, packet[..len].to_vec())).is_err() {
                        return;
                    }
                    // The sender's kernel queues what the link does not take yet.
                    let ahead = free_at.saturating_duration_since(Instant::now());
                    if ahead > Duration::from_millis(1) {
                        std::thread::sleep(ahead);
                    }
                }
            });
        }
        Ok(Self { namespaces, _janitor: janitor })
    }

    /// A program in the near namespace.
    pub fn near(&self, program: &str) -> Command {
        inside(&self.namespaces[0], program)
    }

    /// A program in the far namespace.
    pub fn far(&self, program: &str) -> Command {
        inside(&self.namespaces[1], program)
    }
}

fn inside(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]).env("PATH", shell::path());
    command
}

fn ip(args: &[&str]) -> Result<()> {
    shell::output(&mut shell::command("ip", args)).map(drop)
}

/// A namespace, and the link's end in it.
fn end(janitor: &mut Janitor, namespace: &str, interface: &str, address: &str) -> Result<Arc<Tun>> {
    ip(&["netns", "add", namespace])?;
    janitor.at_end(&format!("ip netns del {namespace}"))?;
    let tun = Tun::new_named(Interface::new(interface)?).context("/dev/net/tun")?;
    ip(&["link", "set", interface, "netns", namespace])?;
    ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", interface])?;
    ip(&["-n", namespace, "link", "set", interface, "mtu", &MTU.to_string(), "txqueuelen", "10000", "up"])?;
    ip(&["-n", namespace, "link", "set", "lo", "up"])?;
    Ok(Arc::new(tun))
}

fn arrive(under_way: &Receiver<(Instant, Vec<u8>)>, to: &Tun) {
    for (at, packet) in under_way {
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        // A packet that finds no room is lost, as on any link.
        let _ = to.send(&packet);
    }
}
