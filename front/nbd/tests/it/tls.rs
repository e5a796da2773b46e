//! The upgrade to TLS, and what must not survive it.

use crate::certificates::Certificates;
use crate::client::*;
use crate::local::{Fixed, export, run};
use kura_nbd::{Hangup, Limits, Session, Tls, TlsKeys, handshake};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::task::{JoinHandle, spawn_local};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

type Handshake = JoinHandle<Result<Option<Session<DuplexStream>>, Hangup>>;

fn keys(certificates: &Certificates, clients: bool) -> TlsKeys {
    let authorities = certificates.file("ca-cert.pem");
    let (certificate, key) = (certificates.file("server-cert.pem"), certificates.file("server-key.pem"));
    TlsKeys::load(&certificate, &key, clients.then_some(&*authorities)).unwrap()
}

async fn connected(tls: Tls) -> (Client<DuplexStream>, Handshake) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let exports = Fixed(vec![export("disk", 1 << 20)]);
    let server = spawn_local(async move { handshake(theirs, &exports, &tls, &Limits::default()).await });
    (Client::greet(ours, 3).await.unwrap(), server)
}

/// The client's side of the upgrade, after `STARTTLS` was acknowledged.
async fn upgrade(
    stream: DuplexStream,
    certificates: &Certificates,
    shows: bool,
) -> io::Result<Client<TlsStream<DuplexStream>>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.file("ca-cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = if shows {
        let chain = vec![CertificateDer::from_pem_file(certificates.file("client-cert.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(certificates.file("client-key.pem")).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let name = ServerName::try_from("localhost").unwrap();
    Ok(Client { stream: TlsConnector::from(Arc::new(config)).connect(name, stream).await? })
}

#[test]
fn without_keys_tls_is_not_supported() {
    run(async {
        let (mut client, _server) = connected(Tls::Off).await;
        assert_eq!(client.verdict(STARTTLS, b"").await.unwrap(), UNSUP);
        assert_eq!(client.verdict(LIST, b"").await.unwrap(), ACK);
    });
}

#[test]
fn a_server_that_requires_tls_tells_nothing_in_the_clear() {
    let certificates = Certificates::make();
    let tls = Tls::Required(keys(&certificates, false));
    run(async {
        let (mut client, server) = connected(tls.clone()).await;
        for number in [LIST, INFO, GO, STRUCTURED_REPLY, LIST_META_CONTEXT, SET_META_CONTEXT, 99] {
            assert_eq!(client.verdict(number, &info_query("disk", &[])).await.unwrap(), TLS_REQD);
        }
        client.send(&option(EXPORT_NAME, b"disk")).await.unwrap();
        assert_eq!(client.rest().await.unwrap(), b"");
        assert!(matches!(server.await.unwrap(), Err(Hangup::Violation(_))));

        let (mut client, _server) = connected(tls.clone()).await;
        assert_eq!(client.verdict(ABORT, b"").await.unwrap(), ACK);
    });
}

#[test]
fn the_upgrade_forgets_what_was_negotiated_before() {
    let certificates = Certificates::make();
    run(async {
        let (mut client, server) = connected(Tls::Offered(keys(&certificates, false))).await;
        assert_eq!(client.verdict(STRUCTURED_REPLY, b"").await.unwrap(), ACK);
        let query = context_query("disk", &["base:allocation"]);
        assert_eq!(client.verdict(SET_META_CONTEXT, &query).await.unwrap(), ACK);
        assert_eq!(client.verdict(STARTTLS, b"data").await.unwrap(), INVALID);
        assert_eq!(client.verdict(STARTTLS, b"").await.unwrap(), ACK);

        let mut client = upgrade(client.stream, &certificates, false).await.unwrap();
        assert_eq!(client.verdict(STARTTLS, b"").await.unwrap(), INVALID);
        assert_eq!(client.verdict(SET_META_CONTEXT, &query).await.unwrap(), INVALID, "structured replies are off");
        let replies = client.option(GO, &info_query("disk", &[])).await.unwrap();
        assert_eq!(replies[0].1[11] & 1 << 7, 0, "no DF without structured replies");
        assert!(server.await.unwrap().unwrap().is_some());
    });
}

#[test]
fn words_in_the_clear_behind_the_upgrade_are_never_taken_for_the_clients() {
    let certificates = Certificates::make();
    run(async {
        let (mut client, server) = connected(Tls::Offered(keys(&certificates, false))).await;
        // Somebody in the middle adds an option of his own to the client's packet.
        client.send(&[option(STARTTLS, b""), option(GO, &info_query("disk", &[]))].concat()).await.unwrap();
        assert_eq!(client.option_replies(STARTTLS).await.unwrap(), [(ACK, vec![])]);
        assert!(upgrade(client.stream, &certificates, false).await.is_err());
        assert!(matches!(server.await.unwrap(), Err(Hangup::Broken(_))));
    });
}

#[test]
fn clients_must_show_a_certificate_when_authorities_are_given() {
    let certificates = Certificates::make();
    let strangers = Certificates::make();
    run(async {
        let tls = Tls::Required(keys(&certificates, true));
        let (mut client, server) = connected(tls.clone()).await;
        assert_eq!(client.verdict(STARTTLS, b"").await.unwrap(), ACK);
        let mut client = upgrade(client.stream, &certificates, true).await.unwrap();
        assert_eq!(client.verdict(GO, &info_query("disk", &[])).await.unwrap(), ACK);
        assert!(server.await.unwrap().unwrap().is_some());

        // None, and one from somebody else: in TLS 1.3 the client learns of the refusal when it reads.
        std::fs::copy(certificates.file("ca-cert.pem"), strangers.file("ca-cert.pem")).unwrap();
        for (shown, shows) in [(&certificates, false), (&strangers, true)] {
            let (mut client, server) = connected(tls.clone()).await;
            assert_eq!(client.verdict(STARTTLS, b"").await.unwrap(), ACK);
            if let Ok(mut client) = upgrade(client.stream, shown, shows).await {
                assert!(client.verdict(LIST, b"").await.is_err());
            }
            assert!(matches!(server.await.unwrap(), Err(Hangup::Broken(_))));
        }
    });
}

#[test]
fn a_tls_handshake_that_stalls_is_dropped() {
    let certificates = Certificates::make();
    run(async {
        let (mut client, server) = connected(Tls::Offered(keys(&certificates, false))).await;
        assert_eq!(client.verdict(STARTTLS, b"").await.unwrap(), ACK);
        client.stream.write_all(&[22, 3, 1]).await.unwrap();
        assert!(matches!(server.await.unwrap(), Err(Hangup::Slow { .. })));
    });
}

#[test]
fn keys_that_are_not_there_or_do_not_match_are_named() {
    let (one, other) = (Certificates::make(), Certificates::make());
    let cases = [
        (one.file("absent.pem"), one.file("server-key.pem"), None),
        (one.file("server-cert.pem"), one.file("server-cert.pem"), None),
        (one.file("server-cert.pem"), other.file("server-key.pem"), None),
        (one.file("server-cert.pem"), one.file("server-key.pem"), Some(one.file("server-key.pem"))),
    ];
    for (certificate, key, authorities) in cases {
        let error = TlsKeys::load(&certificate, &key, authorities.as_deref()).err().expect("a refusal");
        assert!(error.to_string().contains(&one.folder().display().to_string()), "{error}");
    }
}
