//! What a configuration must hold beyond its syntax. Pure but for looking at files that it names.

use super::{Admin, Config, Disk, Finding, Listen, Nbd, Pool, Purpose, S3};
use crate::size::Size;
use crate::tls;
use kura_controller::EXTENT_MAX_BYTES;
use std::collections::BTreeMap;
use std::net::SocketAddr;
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
            return findings;
        }
        if self.data.exists() && !self.data.is_dir() {
            let text = format!("{} is not a directory: name one, or a path that is free", self.data.display());
            findings.push(Finding::new("data", 0..0, text));
        }
        self.nbd.check(&mut findings);
        self.s3.check(&mut findings);
        self.admin.check(&mut findings);
        findings
    }
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
        within_bytes("nbd.request_bytes", &self.request_bytes, REQUEST_BYTES, findings);
        within("nbd.in_flight", *self.in_flight.get_ref() as u64, self.in_flight.span(), IN_FLIGHT, findings);
        within("nbd.connections", *self.connections.get_ref() as u64, self.connections.span(), CONNECTIONS, findings);
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
        if let Some(controllers) = &self.controllers {
            let count = u64::from(*controllers.get_ref());
            within("pool.controllers", count, controllers.span(), CONTROLLERS, findings);
        }
        let wrong = wrong_extent(*self.extent.get_ref());
        findings.extend(wrong.map(|text| Finding::new("pool.extent", self.extent.span(), text)));
        within_bytes("pool.journal", &self.journal, JOURNAL_BYTES, findings);
        within_bytes("pool.write_buffer", &self.write_buffer, WRITE_BUFFER_BYTES, findings);
        let (at, place) = (self.warn_at_percent.get_ref(), self.warn_at_percent.span());
        if !at.iter().all(|percent| WARN_AT_PERCENT.contains(percent)) || !at.is_sorted_by(|one, next| one < next) {
            let text = format!("{at:?}: give per cents from 10 to 100, each above the one before it, as in [80, 95]");
            findings.push(Finding::new("pool.warn_at_percent", place, text));
        }
        let (seconds, place) = (*self.disk_timeout_s.get_ref(), self.disk_timeout_s.span());
        within("pool.disk_timeout_s", seconds, place, DISK_TIMEOUT_S, findings);
        let (seconds, place) = (*self.balance_s.get_ref(), self.balance_s.span());
        within("pool.balance_s", seconds, place, BALANCE_S, findings);
        let (width, place) = (*self.rebuild_width.get_ref() as u64, self.rebuild_width.span());
        within("pool.rebuild_width", width, place, REBUILD_WIDTH, findings);
        if let Some(width) = &self.raid_width {
            within("pool.raid_width", (*width.get_ref()).into(), width.span(), RAID_WIDTH, findings);
        }
        within("pool.disk_queue", *self.disk_queue.get_ref() as u64, self.disk_queue.span(), DISK_QUEUE, findings);
        self.hot.check(findings);
        let mut seen = BTreeMap::<PathBuf, usize>::new();
        for (index, disk) in self.disks.iter().enumerate() {
            if let Some(path) = &disk.path {
                // Two names of one file are one disk.
                let named = path.get_ref();
                let real = named.canonicalize().or_else(|_| absolute(named)).unwrap_or_else(|_| named.clone());
                if let Some(first) = seen.insert(real, index) {
                    let text =
                        format!("{} is listed twice, first as disk {first}: remove one", path.get_ref().display());
                    findings.push(Finding::new("pool.disks", path.span(), text));
                }
            }
            let wrong = disk.check(purpose);
            findings.extend(wrong.map(|(span, text)| Finding::new("pool.disks", span, text)));
        }
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
                let wrong = match purpose {
                    Purpose::Serve => self.not_served(path.get_ref()),
                    Purpose::Lab if self.size.is_some() || path.get_ref().exists() => None,
                    Purpose::Lab => {
                        Some(format!("there is no {}: add size = \"...\" for its model", path.get_ref().display()))
                    }
                };
                wrong.map(|text| (path.span(), text))
            }
            (None, Some(model)) => {
                let wrong = match purpose {
                    Purpose::Serve => {
                        "a model is no disk to serve from: name a path, or use the file with `kura lab replay`"
                            .to_owned()
                    }
                    Purpose::Lab if self.size.is_some() || model.get_ref().size_bytes().is_some() => return None,
                    Purpose::Lab => format!("{} has no size of its own: add size = \"...\"", model.get_ref()),
                };
                Some((model.span(), wrong))
            }
        }
    }

    /// Why the disk at `path` cannot be served.
    fn not_served(&self, path: &Path) -> Option<String> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
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
            Some(format!("{path} cannot be read: {error}: correct the path, or whom the file lets read it"))
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

pub(super) fn within(
    key: &'static str,
    number: u64,
    span: Range<usize>,
    range: RangeInclusive<u64>,
    findings: &mut Vec<Finding>,
) {
    if !range.contains(&number) {
        let text = format!("{number} is not between {} and {}", range.start(), range.end());
        findings.push(Finding::new(key, span, text));
    }
}
