//! TLS of connections, by rustls with ring.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};

/// A certificate and its private key, for TLS 1.2 and 1.3.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that can't be read.
    #[error("cannot read {}: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file that is not PEM, or has no part of this kind.
    #[error("{} has no {what} in PEM", .path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// A certificate, or a private key.
        what: &'static str,
    },
    /// A private key that is not that of the certificate.
    #[error("the private key of {} does not belong to the certificate of {}", .key.display(), .cert.display())]
    Mismatch {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// A certificate or a key that rustls does not take.
    #[error("the certificate of {} and its key: {error}", .cert.display())]
    Certificate {
        /// The file of the certificate.
        cert: PathBuf,
        /// What rustls says.
        error: rustls::Error,
    },
}

impl Tls {
    /// From PEM files: the chain of certificates, that of the server first, and its private key.
    ///
    /// # Errors
    /// [`TlsError::Read`], [`TlsError::Pem`], [`TlsError::Mismatch`], [`TlsError::Certificate`].
    pub fn from_pem_files(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let what = "certificate";
        let chain = CertificateDer::pem_file_iter(cert)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| cannot_read(cert, what, error))?;
        if chain.is_empty() {
            return Err(TlsError::Pem { path: cert.to_owned(), what });
        }
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| cannot_read(key, "private key", error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { cert: cert.to_owned(), key: key.to_owned() }
            }
            error => TlsError::Certificate { cert: cert.to_owned(), error },
        })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0).into()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn cannot_read(path: &Path, what: &'static str, error: pem::Error) -> TlsError {
    let path = path.to_owned();
    match error {
        // Of a binary file.
        pem::Error::Io(error) if error.kind() != io::ErrorKind::InvalidData => {
            TlsError::Read { path, error }
        }
        _ => TlsError::Pem { path, what },
    }
}
