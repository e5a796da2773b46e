//! Which device a disk is: what its label cannot tell somebody who stands before the machine.

use kura_admin::Disk;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Names that the system keeps for devices: by what they are, where they are plugged in, and what they hold.
const LINKS: [&str; 4] = ["/dev/disk/by-id", "/dev/disk/by-path", "/dev/disk/by-partuuid", "/dev/disk/by-uuid"];

/// A disk, and what this machine knows of its device.
#[derive(Serialize)]
pub struct Identity {
    #[serde(flatten)]
    disk: Disk,
    /// Where its path leads to on this machine; none where it leads nowhere.
    device: Option<PathBuf>,
    /// Other names of the device.
    names: Vec<PathBuf>,
    model: Option<String>,
    serial: Option<String>,
}

impl Identity {
    /// What can be told of a disk here.
    pub fn of(disk: Disk) -> Self {
        let device = Path::new(&disk.path).canonicalize().ok();
        let is_it = |link: &PathBuf| device.is_some() && link.canonicalize().ok() == device;
        let links = LINKS.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let mut names: Vec<_> = links.map(|link| link.path()).filter(is_it).collect();
        names.sort();
        let node = device.as_deref().and_then(Path::file_name).map(|name| Path::new("/sys/class/block").join(name));
        let told = |what: &str| {
            // A partition's disk is above it.
            let above = ["device", "../device"].map(|device| node.as_ref().map(|node| node.join(device).join(what)));
            let text = above.into_iter().flatten().find_map(|path| std::fs::read_to_string(path).ok())?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        Self { model: told("model"), serial: told("serial"), device, names, disk }
    }
}

/// The same for people.
pub fn text(identity: &Identity) -> String {
    let Identity { disk, device, names, model, serial } = identity;
    let mut lines = vec![
        format!("disk    {}", disk.id),
        format!("path    {}", disk.path),
        format!("uuid    {}, in its label", disk.uuid),
        format!("size    {}", crate::size::Size(disk.size_bytes)),
    ];
    match device {
        None => lines.push("device  none: on this machine the path leads nowhere".to_owned()),
        Some(device) if device.is_file() => lines.push(format!("device  a file, {}", device.display())),
        Some(device) => lines.push(format!("device  {}", device.display())),
    }
    lines.extend(model.iter().map(|model| format!("model   {model}")));
    lines.extend(serial.iter().map(|serial| format!("serial  {serial}")));
    lines.extend(names.iter().map(|name| format!("name    {}", name.display())));
    lines.join("\n")
}
