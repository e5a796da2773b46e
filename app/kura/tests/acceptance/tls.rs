//! TLS with clients' certificates, as a server that listens beyond loopback must have it.

use crate::harness::{Home, Server, fails, ok, tool};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::Path;

/// An authority, and a server's and a client's certificate by it, under the names that libnbd and QEMU look for.
pub fn certificates(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for the certificates");
    let key = || KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "an authority for tests");
    let authority = CertifiedIssuer::self_signed(authority, key()).expect("an authority");
    std::fs::write(folder.join("ca-cert.pem"), authority.pem()).expect("ca-cert.pem");
    for name in ["server", "client"] {
        let mut params = CertificateParams::new(["localhost".into(), "127.0.0.1".into()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = key();
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        std::fs::write(folder.join(format!("{name}-cert.pem")), certificate.pem()).expect("a certificate");
        std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem()).expect("a key");
    }
}

/// A server that asks clients of its TCP address for a certificate; all are in `pki`.
pub fn serve(home: &Home) -> Server {
    certificates(&home.path("pki"));
    let config = "[nbd]\nrequest_bytes = \"64M\"\n[nbd.tls]\ncert = \"pki/server-cert.pem\"\nkey = \"pki/server-key.pem\"\nclient_ca = \"pki/ca-cert.pem\"\n";
    std::fs::write(home.path("kura.toml"), config).expect("the configuration");
    home.serve_with(&["--config", "kura.toml"])
}

#[test]
fn clients_with_a_certificate_are_served() {
    let home = Home::new();
    let server = serve(&home);
    let (port, pki) = (server.port("nbds"), home.path("pki"));
    let uri = format!("nbds://localhost:{port}/demo?tls-certificates={}", pki.display());
    assert_eq!(ok(tool("nbdinfo").args(["--size", &uri])).trim(), (1 << 30).to_string());
    let image = home.path("image");
    std::fs::write(&image, vec![0x5a; 1 << 20]).expect("an image");
    ok(tool("nbdcopy").arg(&image).arg(&uri));

    let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={}", pki.display());
    let options =
        format!("driver=raw,file.driver=nbd,file.host=localhost,file.port={port},file.export=demo,file.tls-creds=tls0");
    let mut qemu_img = tool("qemu-img");
    let back = home.path("back");
    ok(qemu_img.args(["convert", "--object", &credentials, "--image-opts", &options, "-O", "raw"]).arg(&back));
    assert!(std::fs::read(back).expect("the copy").starts_with(&vec![0x5a; 1 << 20]));
}

#[test]
fn clients_without_one_are_not() {
    let home = Home::new();
    let server = serve(&home);
    let port = server.port("nbds");
    fails(tool("nbdinfo").arg(format!("nbd://localhost:{port}/demo")));
    let stranger = home.path("stranger");
    certificates(&stranger);
    // The server's own authority, so that the client trusts the server; its certificate is by another.
    std::fs::copy(home.path("pki/ca-cert.pem"), stranger.join("ca-cert.pem")).expect("ca-cert.pem");
    fails(tool("nbdinfo").arg(format!("nbds://localhost:{port}/demo?tls-certificates={}", stranger.display())));
    // The Unix socket is for this machine's users and stays as it is.
    ok(tool("nbdinfo").args(["--size", &home.uri("demo")]));
}
