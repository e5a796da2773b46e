//! What a configuration must hold beyond its syntax. Pure but for looking at files that it names.

use super::{Admin, Config, Disk, Finding, Listen, Nbd, Pool, Purpose, S3};
use crate::serve::data::DataDir;
use crate::serve::disks::{Planned, planned, refuse_single_fast};
use crate::serve::node::{Shape, check_shape};
use crate::size::Size;
use crate::tls;
use kura_admin::DiskClass;
use kura_controller::{EXTENT_MAX_BYTES, VolumeSpec};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf, absolute};
use toml::Spanned;

/// A token that guessing will not find.
const TOKEN_CHARS: usize = 16;
/// The protocol's least, and a bound on what one request may take of memory.
const REQUEST_BYTES: RangeInclusive<u64> = (64 << 10)..=(64 << 20);
/// The engine takes smaller ones, for its tests: their tables would outgrow what they are worth.
const EXTENT_BYTES: RangeInclusive<u64> = (1 << 20)..=EXTENT_MAX_BYTES;
const JOURNAL_BYTES: RangeInclusive<u64> = (16 << 20)..=(64 << 30);
const CACHE_BYTES: RangeInclusive<u64> = 0..=(1 << 40);
const WRITE_BUFFER_BYTES: RangeInclusive<u64> = (4 << 20)..=(64 << 30);
const REBUILD_WIDTH: RangeInclusive<u64> = 1..=64;
const FLOATING_PERCENT: RangeInclusive<u64> = 0..=100;
const RAID_WIDTH: RangeInclusive<u64> = 3..=17;
const WARN_AT_PERCENT: RangeInclusive<u8> = 10..=100;
const DISK_TIMEOUT_S: RangeInclusive<u64> = 0..=3600;
const BALANCE_S: RangeInclusive<u64> = 0..=3600;
const DISK_QUEUE: RangeInclusive<u64> = 0..=256;
const CONTROLLERS: RangeInclusive<u64> = 1..=64;
const CONNECTIONS: RangeInclusive<u64> = 1..=65536;
const IN_FLIGHT: RangeInclusive<u64> = 1..=4096;

/// True when only programs of this machine can reach the address.
fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl Config {
    /// All that is wrong.
    pub(super) fn check(&self, purpose: Purpose) -> Vec<Finding> {
        let mut findings = vec![];
        self.pool.check(purpose, &mut findings);
        self.tier.check(&mut findings);
        if purpose == Purpose::Lab {
            findings.extend(self.tier.check_region(self.pool.extent.get_ref().0).err());
            return findings;
        }
        self.check_data(&mut findings);
        self.nbd.check(&mut findings);
        self.check_sockets(&mut findings);
        self.s3.check(&mut findings);
        self.admin.check(&mut findings);
        self.check_ports(&mut findings);
        if !DataDir::may_have_pool(self.data.get_ref()) {
            self.check_new_pool(&mut findings);
        }
        findings
    }

    fn check_data(&self, findings: &mut Vec<Finding>) {
        let data = self.data.get_ref();
        let wrong = if data.as_os_str().is_empty() {
            Some("it is empty: name a directory".to_owned())
        } else if data.exists() && !data.is_dir() {
            Some(format!("{} is not a directory: name one, or a path that is free", data.display()))
        } else {
            None
        };
        findings.extend(wrong.map(|text| Finding::new("data", self.data.span(), text)));
        // Zero is no volume.
        let demo = Some(self.demo.get_ref().0).filter(|size| *size > 0).map(VolumeSpec::check_size);
        let wrong = demo.and_then(Result::err);
        findings.extend(wrong.map(|error| Finding::new("demo", self.demo.span(), error.to_string())));
    }

    /// Nor are two at one socket.
    fn check_sockets(&self, findings: &mut Vec<Finding>) {
        let admin = real(&self.data.get_ref().join("admin.sock"));
        if let Some(unix) = self.nbd.unix.as_ref().filter(|unix| real(unix.get_ref()) == admin) {
            let text = format!("{} is where commands ask the server: name another path", unix.get_ref().display());
            findings.push(Finding::new("nbd.unix", unix.span(), text));
        }
    }

    /// Two doors are not at one port of one address.
    fn check_ports(&self, findings: &mut Vec<Finding>) {
        let doors =
            [("nbd.listen", &self.nbd.listen), ("s3.listen", &self.s3.listen), ("admin.listen", &self.admin.listen)];
        for (index, (key, listen)) in doors.iter().enumerate() {
            let taken = doors[..index].iter().find(|(_, other)| collide(*listen.get_ref(), *other.get_ref()));
            if let Some((first, _)) = taken {
                let text = format!("{} is {first} already: choose another port, or 0", listen.get_ref());
                findings.push(Finding::new(key, listen.span(), text));
            }
        }
    }

    /// What a first start would refuse. Later on the pool's disks need not be those that are listed.
    fn check_new_pool(&self, findings: &mut Vec<Finding>) {
        findings.extend(self.tier.check_region(self.pool.extent.get_ref().0).err());
        for disk in &self.pool.disks {
            let Some(path) = &disk.path else { continue };
            let wrong = disk.not_usable(path.get_ref());
            findings.extend(wrong.map(|text| Finding::new("pool.disks", path.span(), text)));
        }
        let planned = planned(self.data.get_ref(), &self.pool.disks);
        let fast = self.pool.disks.iter().find(|disk| *disk.class.get_ref() == DiskClass::Fast);
        if let (false, Some(only)) = (self.tier.knows_single_disk(), fast) {
            let insist = "name it as tier.single_disk to have it serve reads, or say tier.policy = 'off'";
            let wrong = refuse_single_fast(&planned, insist).err();
            findings.extend(wrong.map(|error| Finding::new("pool.disks", only.class.span(), error.to_string())));
        }
        let paths: Vec<_> = planned.iter().map(|disk| disk.path.clone()).collect();
        self.tier.check_single_disk(&paths, findings);
        // Of what is wrong already this may be no more than another word.
        if findings.is_empty() {
            findings.extend(self.pool.check_fits(&planned).err());
        }
    }
}

/// True for two places that one machine cannot listen at both.
fn collide(one: Listen, other: Listen) -> bool {
    let (Listen::At(one), Listen::At(other)) = (one, other) else { return false };
    // All addresses of IPv6 are those of IPv4, too.
    let covers =
        |one: IpAddr, other: IpAddr| one == other || one.is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    one.port() != 0 && one.port() == other.port() && (covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
}

impl Nbd {
    fn check(&self, findings: &mut Vec<Finding>) {
        let has_ca = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if let Some(address) = beyond(&self.listen)
            && !has_ca
        {
            let text = format!(
                "{address} is reached from other machines, which requires TLS and clients' certificates: \
                 add [nbd.tls] with cert, key and client_ca, or listen on 127.0.0.1"
            );
            findings.push(Finding::new("nbd.listen", self.listen.span(), text));
        }
        if let Some(tls) = &self.tls {
            identity(["nbd.tls.cert", "nbd.tls.key"], (&tls.cert, &tls.key), findings);
            if let Some(ca) = &tls.client_ca {
                pem("nbd.tls.client_ca", ca, |path| tls::authorities(path).map(drop), findings);
            }
        }
        if let Some(unix) = &self.unix {
            let wrong = no_socket(unix.get_ref());
            findings.extend(wrong.map(|text| Finding::new("nbd.unix", unix.span(), text)));
        }
        within_bytes("nbd.request_bytes", &self.request_bytes, REQUEST_BYTES, findings);
        within("nbd.in_flight", Some(&self.in_flight), IN_FLIGHT, findings);
        within("nbd.connections", Some(&self.connections), CONNECTIONS, findings);
    }
}

impl S3 {
    fn check(&self, findings: &mut Vec<Finding>) {
        if let (Some(address), None) = (beyond(&self.listen), &self.tls) {
            let text = format!(
                "{address} is reached from other machines, which requires TLS: \
                 add [s3.tls] with cert and key, or listen on 127.0.0.1"
            );
            findings.push(Finding::new("s3.listen", self.listen.span(), text));
        }
        if let Some(cache) = &self.cache {
            within_bytes("s3.cache", cache, CACHE_BYTES, findings);
        }
        if let Some(tls) = &self.tls {
            identity(["s3.tls.cert", "s3.tls.key"], (&tls.cert, &tls.key), findings);
        }
    }
}

impl Admin {
    fn check(&self, findings: &mut Vec<Finding>) {
        let missing = match (&self.token, &self.tls) {
            (Some(_), Some(_)) => None,
            (None, Some(_)) => Some("admin.token = \"...\""),
            (Some(_), None) => Some("[admin.tls] with cert and key"),
            (None, None) => Some("admin.token = \"...\", and [admin.tls] with cert and key"),
        };
        if let (Some(address), Some(missing)) = (beyond(&self.listen), missing) {
            let text = format!(
                "{address} is reached from other machines, which requires a token and TLS: \
                 add {missing}, or listen on 127.0.0.1"
            );
            findings.push(Finding::new("admin.listen", self.listen.span(), text));
        }
        if let Some(token) = &self.token {
            let fit = token.get_ref().chars().filter(char::is_ascii_graphic).count();
            if fit < TOKEN_CHARS || fit != token.get_ref().chars().count() {
                let text = format!(
                    "a token has at least {TOKEN_CHARS} letters, digits and signs, no spaces: \
                     make one with `openssl rand -hex 32`"
                );
                findings.push(Finding::new("admin.token", token.span(), text));
            }
        }
        if let Some(tls) = &self.tls {
            identity(["admin.tls.cert", "admin.tls.key"], (&tls.cert, &tls.key), findings);
        }
    }
}

impl Pool {
    fn check(&self, purpose: Purpose, findings: &mut Vec<Finding>) {
        within("pool.controllers", self.controllers.as_ref(), CONTROLLERS, findings);
        let wrong = wrong_extent(*self.extent.get_ref());
        findings.extend(wrong.map(|text| Finding::new("pool.extent", self.extent.span(), text)));
        within_bytes("pool.journal", &self.journal, JOURNAL_BYTES, findings);
        within("pool.floating_percent", Some(&self.floating_percent), FLOATING_PERCENT, findings);
        within_bytes("pool.write_buffer", &self.write_buffer, WRITE_BUFFER_BYTES, findings);
        let (at, place) = (self.warn_at_percent.get_ref(), self.warn_at_percent.span());
        if !at.iter().all(|percent| WARN_AT_PERCENT.contains(percent)) || !at.is_sorted_by(|one, next| one < next) {
            let text = format!("{at:?}: give percentages from 10 to 100, each above the one before it, as in [80, 95]");
            findings.push(Finding::new("pool.warn_at_percent", place, text));
        }
        within("pool.disk_timeout_s", Some(&self.disk_timeout_s), DISK_TIMEOUT_S, findings);
        within("pool.balance_s", Some(&self.balance_s), BALANCE_S, findings);
        within("pool.rebuild_width", Some(&self.rebuild_width), REBUILD_WIDTH, findings);
        within("pool.raid_width", self.raid_width.as_ref(), RAID_WIDTH, findings);
        within("pool.disk_queue", Some(&self.disk_queue), DISK_QUEUE, findings);
        self.hot.check(findings);
        let mut seen = BTreeMap::<PathBuf, usize>::new();
        for (index, disk) in self.disks.iter().enumerate() {
            if let Some(path) = &disk.path {
                // Two names of one file are one disk.
                if let Some(first) = seen.insert(real(path.get_ref()), index) {
                    let text =
                        format!("{} is listed twice, first as disk {first}: remove one", path.get_ref().display());
                    findings.push(Finding::new("pool.disks", path.span(), text));
                }
            }
            let wrong = disk.check(purpose);
            findings.extend(wrong.map(|(span, text)| Finding::new("pool.disks", span, text)));
            // The size of what is there already says nothing.
            let is_made = !disk.path().is_some_and(Path::exists);
            if let Some(size) = disk.size.as_ref().filter(|size| is_made && size.get_ref().0 < self.extent.get_ref().0)
            {
                let (size_bytes, extent) = (size.get_ref(), self.extent.get_ref());
                let text = format!("{size_bytes} is too small for an extent of {extent}: give a larger size");
                findings.push(Finding::new("pool.disks", size.span(), text));
            }
        }
    }
}

impl Pool {
    /// Refuses what the disks have no room for, at the key without which they have.
    fn check_fits(&self, planned: &[Planned]) -> Result<(), Finding> {
        let shape = Shape::from(self);
        let Err(error) = check_shape(planned, shape) else { return Ok(()) };
        let fits = |shape| check_shape(planned, shape).is_ok();
        let journal_bytes = Shape::from(&Self::default()).journal_bytes;
        let (key, span) = match &self.controllers {
            Some(number) if fits(Shape { controllers: None, ..shape }) => ("pool.controllers", number.span()),
            _ if fits(Shape { journal_bytes, ..shape }) => ("pool.journal", self.journal.span()),
            _ => ("pool.disks", self.disks.first().map_or(0..0, |disk| disk.class.span())),
        };
        Err(Finding::new(key, span, error.to_string()))
    }
}

impl Disk {
    /// What is wrong with it, and where.
    fn check(&self, purpose: Purpose) -> Option<(Range<usize>, String)> {
        match (&self.path, &self.model) {
            (None, None) => {
                let text = "a disk has a path, or for `kura lab replay` a model: add one";
                Some((self.class.span(), text.to_owned()))
            }
            (Some(path), _) => {
                // Whether one can be served is a matter of new pools: a disk that is gone is for the pool to tell.
                if purpose == Purpose::Serve || self.size.is_some() || path.get_ref().exists() {
                    return None;
                }
                let text = format!("there is no {}: add size = \"...\" for its model", path.get_ref().display());
                Some((path.span(), text))
            }
            (None, Some(model)) => {
                let wrong = match purpose {
                    Purpose::Serve => {
                        "a model is not a disk to serve from: name a path, or use the file with `kura lab replay`"
                            .to_owned()
                    }
                    Purpose::Lab if self.size.is_some() || model.get_ref().size_bytes().is_some() => return None,
                    Purpose::Lab => format!("{} has no size of its own: add size = \"...\"", model.get_ref()),
                };
                Some((model.span(), wrong))
            }
        }
    }

    /// Why no pool can be made of the disk at `path`.
    fn not_usable(&self, path: &Path) -> Option<String> {
        let parent = parent(path);
        if path.is_dir() {
            Some(format!("{} is a directory: name a block device or a file", path.display()))
        } else if path.exists() {
            None
        } else if !parent.is_dir() {
            Some(format!("there is no directory {}: make it, or name another path", parent.display()))
        } else if self.size.is_none() {
            Some(format!("there is no {}: correct the path, or add size = \"...\" to make a file", path.display()))
        } else {
            None
        }
    }
}

/// Why a socket cannot be made at `path`.
fn no_socket(path: &Path) -> Option<String> {
    let parent = parent(path);
    if path.as_os_str().is_empty() {
        Some("it is empty: name a path".to_owned())
    } else if path.is_dir() {
        Some(format!("{} is a directory: name a path in it", path.display()))
    } else if !parent.is_dir() {
        Some(format!("there is no directory {}: make it, or name another path", parent.display()))
    } else {
        None
    }
}

/// The directory that `path` is in.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A path by which two names of one file are alike.
pub(super) fn real(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn beyond(listen: &Spanned<Listen>) -> Option<SocketAddr> {
    match *listen.get_ref() {
        Listen::At(address) if !is_local(address) => Some(address),
        _ => None,
    }
}

/// Checks what a server shows to clients: a certificate, its key, and that they belong together.
fn identity(keys: [&'static str; 2], (cert, key): (&Spanned<PathBuf>, &Spanned<PathBuf>), findings: &mut Vec<Finding>) {
    let has_cert = pem(keys[0], cert, |path| tls::certificates(path).map(drop), findings);
    let has_key = pem(keys[1], key, |path| tls::secret(path).map(drop), findings);
    if has_cert && has_key {
        pem(keys[1], key, |path| tls::identity(cert.get_ref(), path).map(drop), findings);
    }
}

/// True when the file can be read, and read as what it is to hold.
fn pem(
    key: &'static str,
    path: &Spanned<PathBuf>,
    read: impl FnOnce(&Path) -> anyhow::Result<()>,
    findings: &mut Vec<Finding>,
) -> bool {
    let wrong = match std::fs::File::open(path.get_ref()) {
        Err(error) => {
            let path = path.get_ref().display();
            Some(format!("{path} cannot be read: {error}: correct the path or the file's permissions"))
        }
        Ok(_) => read(path.get_ref()).err().map(|error| format!("{error:#}")),
    };
    let is_fine = wrong.is_none();
    findings.extend(wrong.map(|text| Finding::new(key, path.span(), text)));
    is_fine
}

pub(super) fn within_bytes(
    key: &'static str,
    size: &Spanned<Size>,
    range: RangeInclusive<u64>,
    findings: &mut Vec<Finding>,
) {
    let wrong = wrong_size(*size.get_ref(), &range);
    findings.extend(wrong.map(|text| Finding::new(key, size.span(), text)));
}

/// What is wrong with a size, if anything.
fn wrong_size(size: Size, range: &RangeInclusive<u64>) -> Option<String> {
    if !range.contains(&size.0) {
        let (least, most) = (Size(*range.start()), Size(*range.end()));
        return Some(format!("{size} is not between {least} and {most}"));
    }
    (!size.0.is_multiple_of(4096)).then(|| format!("{} is not a multiple of 4096 bytes", size.0))
}

fn wrong_extent(size: Size) -> Option<String> {
    let uneven = || format!("{size} is not a power of two: write 1M, 2M, 4M ...");
    wrong_size(size, &EXTENT_BYTES).or_else(|| (!size.0.is_power_of_two()).then(uneven))
}

/// A pool's extent on the command line: what `pool.extent` may be.
pub fn parse_extent(text: &str) -> Result<Size, String> {
    let size = text.parse()?;
    wrong_extent(size).map_or(Ok(size), Err)
}

/// A pool's journal on the command line: what `pool.journal` may be.
pub fn parse_journal(text: &str) -> Result<Size, String> {
    let size = text.parse()?;
    wrong_size(size, &JOURNAL_BYTES).map_or(Ok(size), Err)
}

/// Checks a number, if it is given.
pub(super) fn within<T: Copy + Display + TryInto<u64>>(
    key: &'static str,
    number: Option<&Spanned<T>>,
    range: RangeInclusive<u64>,
    findings: &mut Vec<Finding>,
) {
    let Some(number) = number else { return };
    let given = *number.get_ref();
    if !given.try_into().is_ok_and(|given| range.contains(&given)) {
        let text = format!("{given} is not between {} and {}", range.start(), range.end());
        findings.push(Finding::new(key, number.span(), text));
    }
}
