//! Where a copy is kept, as it is written on the command line.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a copy is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A directory of this machine.
    Local(PathBuf),
    /// `HOST:PATH` or `rsync://HOST/MODULE/PATH`: what rsync takes.
    Rsync(String),
    /// `kura://HOST:PORT/PATH`, or `kuras://` in TLS: a directory under the one that `kura replicate serve` there serves.
    Tcp {
        /// `HOST:PORT`.
        address: String,
        /// Whether TLS is spoken.
        tls: bool,
        /// Under the directory that is served.
        path: String,
    },
    /// `ssh://[USER@]HOST[:PORT]/PATH`: kura on the other host, by ssh.
    Ssh {
        /// `[USER@]HOST`.
        host: String,
        /// None for ssh's own.
        port: Option<u16>,
        /// From the root.
        path: String,
    },
    /// `https://HOST:PORT/VOLUME`, or `http` on this machine: a volume of the kura whose REST door is there. Of a bucket's
    /// copy `https://HOST/BUCKET`: a bucket of whatever speaks S3 there.
    Kura {
        /// `https://HOST:PORT`.
        server: String,
        /// The volume, or the bucket.
        volume: String,
    },
    /// `s3://BUCKET`: a bucket of Amazon's S3.
    Bucket(String),
}

/// Whether it is this machine that a host names: what goes there passes nobody.
pub fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Which directory is at a path, and which are above it, by device and inode; zeroes for each that is not there.
pub(crate) fn identities(path: &Path) -> Vec<(u64, u64)> {
    let identity = |path: &Path| rustix::fs::stat(path).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    real(path).iter().flat_map(|path| path.ancestors()).map(identity).collect()
}

/// Whether a path leads to an open directory.
pub(crate) fn leads_to(path: &Path, directory: impl AsFd) -> bool {
    let (there, open) = (rustix::fs::stat(path), rustix::fs::fstat(directory));
    there.ok().zip(open.ok()).is_some_and(|(there, open)| (there.st_dev, there.st_ino) == (open.st_dev, open.st_ino))
}

/// The owner of every file that this process writes; `None` where it can set ownership.
pub(crate) fn owner() -> Option<(u32, u32)> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (!uid.is_root()).then(|| (uid.as_raw(), gid.as_raw()))
}

/// Where a path really leads, of which the end need not be there yet.
pub(crate) fn real(path: &Path) -> Option<PathBuf> {
    let existing = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let existing = existing.or_else(|| Some((Path::new(""), Path::new(".").canonicalize().ok()?)));
    let (given, real) = existing?;
    let rest = path.strip_prefix(given).unwrap_or(Path::new(""));
    // Joined with nothing, it would end with a slash.
    Some(if rest == Path::new("") { real } else { real.join(rest) })
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = |rest: &str| match rest.split_once('/') {
            Some((host, path)) if !host.is_empty() => Some((host.to_owned(), path.to_owned())),
            None if !rest.is_empty() => Some((rest.to_owned(), String::new())),
            _ => None,
        };
        for (scheme, tls) in [("kura://", false), ("kuras://", true)] {
            let Some(rest) = text.strip_prefix(scheme) else { continue };
            let has_port = |address: &str| {
                address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            };
            let (address, path) = parts(rest)
                .filter(|(address, _)| has_port(address))
                .ok_or_else(|| format!("write {scheme}HOST:PORT/PATH"))?;
            return Ok(Self::Tcp { address, tls, path });
        }
        if let Some(rest) = text.strip_prefix("ssh://") {
            let (host, path) = parts(rest).ok_or("write ssh://HOST/PATH")?;
            let (host, port) = match host.rsplit_once(':') {
                Some((name, port)) => (name.to_owned(), Some(port.parse().map_err(|_| format!("{port} is no port"))?)),
                None => (host, None),
            };
            if path.is_empty() || host.starts_with('-') {
                return Err("write ssh://HOST/PATH".to_owned());
            }
            return Ok(Self::Ssh { host, port, path: format!("/{path}") });
        }
        for scheme in ["https://", "http://"] {
            let Some(rest) = text.strip_prefix(scheme) else { continue };
            let (address, volume) = parts(rest)
                .filter(|(_, volume)| !volume.is_empty() && !volume.contains('@'))
                .ok_or_else(|| format!("write {scheme}HOST:PORT/VOLUME, or {scheme}HOST:PORT/BUCKET"))?;
            return Ok(Self::Kura { server: format!("{scheme}{address}"), volume });
        }
        if let Some(bucket) = text.strip_prefix("s3://") {
            let bucket = bucket.strip_suffix('/').unwrap_or(bucket);
            let fits = !bucket.is_empty() && !bucket.contains('/');
            return if fits { Ok(Self::Bucket(bucket.to_owned())) } else { Err("write s3://BUCKET".to_owned()) };
        }
        if text.starts_with("rsync://") {
            return Ok(Self::Rsync(text.trim_end_matches('/').to_owned()));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(format!(
                "{scheme}:// is no target: a target is a directory, HOST:PATH, or begins with {}",
                "kura://, kuras://, ssh://, rsync://, http://, https:// or s3://"
            ));
        }
        let colon = text.find(':').unwrap_or(text.len());
        match text.find('/').unwrap_or(text.len()) {
            _ if text.is_empty() || text.starts_with('-') => {
                Err("a target is a directory, HOST:PATH or a URI".to_owned())
            }
            slash if colon < slash => Ok(Self::Rsync(text.trim_end_matches('/').to_owned())),
            _ => Ok(Self::Local(text.into())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Rsync(text) => f.write_str(text),
            Self::Kura { server, volume } => write!(f, "{server}/{volume}"),
            Self::Bucket(bucket) => write!(f, "s3://{bucket}"),
            Self::Tcp { address, tls: false, path } => write!(f, "kura://{address}/{path}"),
            Self::Tcp { address, tls: true, path } => write!(f, "kuras://{address}/{path}"),
            Self::Ssh { host, port: Some(port), path } => write!(f, "ssh://{host}:{port}{path}"),
            Self::Ssh { host, port: None, path } => write!(f, "ssh://{host}{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        let ssh = |port| Target::Ssh { host: "me@b".into(), port, path: "/x y".into() };
        let tcp = |tls, path: &str| Some(Target::Tcp { address: "h:7402".into(), tls, path: path.into() });
        let cases = [
            ("/a/b:c", Some(Target::Local("/a/b:c".into()))),
            ("copy", Some(Target::Local("copy".into()))),
            ("./a:b", Some(Target::Local("./a:b".into()))),
            ("host:/a/", Some(Target::Rsync("host:/a".into()))),
            ("host::module/a", Some(Target::Rsync("host::module/a".into()))),
            ("rsync://h:873/m/", Some(Target::Rsync("rsync://h:873/m".into()))),
            ("kura://h:7402/a/b", tcp(false, "a/b")),
            ("kura://h:7402", tcp(false, "")),
            ("kuras://h:7402/a/b", tcp(true, "a/b")),
            ("kuras://h/a", None),
            ("ssh://me@b/x y", Some(ssh(None))),
            ("ssh://me@b:22/x y", Some(ssh(Some(22)))),
            ("https://h:7400/v", Some(Target::Kura { server: "https://h:7400".into(), volume: "v".into() })),
            ("s3://photos", Some(Target::Bucket("photos".into()))),
            ("s3://photos/", Some(Target::Bucket("photos".into()))),
            ("s3://photos/a", None),
            ("s3://", None),
            ("http://h:7400", None),
            ("https://h:7400/v@monday", None),
            ("kura://h/a", None),
            ("kura:///a", None),
            ("ssh://b", None),
            ("ssh://-oProxyCommand=x/a", None),
            ("-e", None),
            ("", None),
        ];
        for (text, target) in cases {
            assert_eq!(text.parse::<Target>().ok(), target, "{text:?}");
        }
    }
}
