//! Certificates made for a test, under the names that libnbd and QEMU look for.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder with `ca-cert.pem`, `server-cert.pem`, `server-key.pem`, `client-cert.pem` and `client-key.pem`.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let authority =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        std::fs::write(folder.path().join("ca-cert.pem"), authority.pem()).expect("a file");
        for (name, names, usage) in [
            ("server", &["localhost", "127.0.0.1"][..], ExtendedKeyUsagePurpose::ServerAuth),
            ("client", &[], ExtendedKeyUsagePurpose::ClientAuth),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let mut params = CertificateParams::new(names).expect("names");
            params.distinguished_name.push(DnType::CommonName, name);
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            std::fs::write(folder.path().join(format!("{name}-cert.pem")), certificate.pem()).expect("a file");
            std::fs::write(folder.path().join(format!("{name}-key.pem")), key.serialize_pem()).expect("a file");
        }
        Self(folder)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
