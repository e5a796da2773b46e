//! Certificates and keys from PEM files.

use crate::misuse::Misuse;
use anyhow::{Context, Result, ensure};
use kura_admin::ServerUri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// What an HTTPS server shows.
pub fn identity(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = certificates(cert)?;
    let secret = secret(key)?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("{} and {}: do they belong together?", cert.display(), key.display()))?;
    Ok(Arc::new(config))
}

/// Whom a client of `server` trusts: none where that shows no certificate. `option` is what names the authority.
pub fn trusted(server: &ServerUri, ca: Option<&Path>, option: &str) -> Result<Option<Arc<ClientConfig>>> {
    match (server, ca) {
        (ServerUri::Https(_), None) => {
            let text = format!("{server} needs an authority to trust: name its PEM file with {option}");
            Err(Misuse(text).into())
        }
        (ServerUri::Https(_), Some(ca)) => Ok(Some(trust(ca)?)),
        _ => Ok(None),
    }
}

/// Whom an HTTPS client trusts.
pub fn trust(ca: &Path) -> Result<Arc<ClientConfig>> {
    client(authorities(ca)?)
}

/// The authorities in a PEM file.
pub fn authorities(ca: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(ca)? {
        roots.add(authority).with_context(|| format!("{}: not an authority's certificate", ca.display()))?;
    }
    Ok(roots)
}

/// The private key in a PEM file.
pub fn secret(key: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{}: no private key in PEM can be read from it", key.display()))
}

/// Whom this system trusts.
pub fn trust_system() -> Result<Arc<ClientConfig>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // An odd one among them harms no others.
    roots.add_parsable_certificates(found.certs);
    let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    ensure!(!roots.is_empty(), "no authority can be found that this system trusts{why}");
    client(roots)
}

fn client(roots: RootCertStore) -> Result<Arc<ClientConfig>> {
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// The certificates in a PEM file: at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.with_context(|| format!("{}: no certificate in PEM can be read from it", path.display()))?;
    ensure!(!chain.is_empty(), "{}: there is no certificate in it", path.display());
    Ok(chain)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
