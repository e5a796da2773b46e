//! `kura replicate serve`: the target's end of copies.

use crate::show::print;
use crate::tls;
use anyhow::{Context, Result, bail};
use kura_replicate::{Service, serve_stdio};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Serves a stream, or all who connect, until the end.
pub fn serve(
    root: &Path,
    listen: Option<String>,
    token_file: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
) -> Result<()> {
    let Some(address) = listen else {
        return serve_stdio(root).with_context(|| root.display().to_string());
    };
    let token_file = token_file.map_or_else(|| beside(root), Ok)?;
    let token = token(&token_file)?;
    let tls = identity.map(|(cert, key)| tls::identity(&cert, &key)).transpose()?;
    let scheme = if tls.is_some() { "kuras" } else { "kura" };
    let service = Service::listen(root, &address, token, tls).with_context(|| root.display().to_string())?;
    print(&format!("{scheme}://{}/NAME keeps a copy in {}/NAME", service.address()?, root.display()))?;
    print(&format!("clients need `--target-token-file` with a copy of {}\nready", token_file.display()))?;
    Ok(service.run()?)
}

/// `DIR.token`, beside the directory. One with a dot in its name has a file of its own, too.
fn beside(root: &Path) -> Result<PathBuf> {
    let at = || root.display().to_string();
    // `.` and `..` have their names elsewhere.
    let named = if root.file_name().is_some() { root.to_owned() } else { root.canonicalize().with_context(at)? };
    let Some(name) = named.file_name() else { bail!("{} has nothing beside it: name a file with --token-file", at()) };
    let mut name = name.to_owned();
    name.push(".token");
    Ok(named.with_file_name(name))
}

/// The token in a file, which only its owner may read.
fn token(path: &Path) -> Result<String> {
    let at = || path.display().to_string();
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let token = uuid::Uuid::new_v4().simple().to_string();
            file.write_all(token.as_bytes()).with_context(at)?;
            Ok(token)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let token = std::fs::read_to_string(path).with_context(at)?.trim().to_owned();
            if token.is_empty() {
                bail!("{} is empty: remove it, and one is made", at());
            }
            Ok(token)
        }
        Err(error) => Err(error).with_context(at),
    }
}
