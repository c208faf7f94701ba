//! A node vouches for the key that is to be certified next as its own, with the key and the certificate that it has now.
//!
//! Which key a node has, coordination says, and each node of the cluster can write there. By that word alone a node could
//! have its own key certified in another one's name, where connections don't prove who asks. What somebody has heard is of
//! no use to them: it names the one key, whose private half they don't have.

use super::certificate::Certificate;
use super::credentials::Credentials;
use super::names::NodeName;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use model::{Error, ErrorKind, NodeId, Result, Timestamp};

/// What is signed begins so. Nothing else does that a node's key signs: TLS's own proofs begin with spaces, requests for
/// certificates with the sign of a sequence.
const CONTEXT: &[u8] = b"Shale: the next key of my node\0";

fn message(key: &[u8; 32]) -> Vec<u8> {
    [CONTEXT, key].concat()
}

impl Credentials {
    /// Vouches for a key, which [`PrivateKey::key_hash`](super::PrivateKey::key_hash) names: it is to be this node's. To be
    /// shown with the certificate.
    ///
    /// # Errors
    /// `Unavailable` if the system gives no random numbers.
    pub fn vouch_for(&self, key: &[u8; 32]) -> Result<Vec<u8>> {
        self.key().sign(&message(key))
    }

    /// Checks that a node of this cluster vouches for a key: that a certificate is the node's, is believed by whoever trusts
    /// the same authorities as this node, and that its key has signed.
    ///
    /// # Errors
    /// `NotPermitted`, with the reason.
    pub fn check_vouched(
        &self,
        node: NodeId,
        key: &[u8; 32],
        (certificate, signature): (&[u8], &[u8]),
        now: Timestamp,
    ) -> Result<()> {
        let refused = |why: String| {
            let text =
                format!("node {node} doesn't vouch for the key that is to be its own: {why}");
            Error::new(ErrorKind::NotPermitted, text)
        };
        let certificate =
            Certificate::from_der(certificate).map_err(|it| refused(it.to_string()))?;
        let name = NodeName {
            node,
            cluster: self.name().cluster,
        };
        let believed = self.believe(&certificate, name, now);
        believed.map_err(|error| refused(error.to_string()))?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, certificate.key_point())
            .verify(&message(key), signature)
            .map_err(|_| refused("its certificate's key hasn't signed it".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::{Authority, Holder, PrivateKey, SigningRequest};

    /// In 2026.
    const NOW: i64 = 1_770_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timespec(seconds, 0)
    }

    fn node(authority: &Authority, node: u32) -> Credentials {
        let holder = Holder {
            node: NodeId(node),
            addresses: Vec::new(),
            has_localhost: false,
        };
        Credentials::first(authority, &holder, at(NOW)).unwrap()
    }

    #[test]
    fn a_key_is_vouched_for_by_the_key_that_the_node_has_and_by_no_other() {
        let [old, new] = [(); 2].map(|()| Authority::found(1, at(NOW)).unwrap());
        let both = [&old, &new].map(|it| it.certificate().clone()).to_vec();
        let judge = node(&new, 1).trusting(both).unwrap();
        let (own, other) = (node(&old, 3), node(&old, 4));
        let [next, stranger] = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let hash = next.key_hash();
        let proof = own.vouch_for(&hash).unwrap();
        let shown = own.certificate().der();
        let checked = |node: u32, key: &[u8; 32], certificate: &[u8], proof: &[u8], when| {
            judge.check_vouched(NodeId(node), key, (certificate, proof), at(when))
        };
        checked(3, &hash, shown, &proof, NOW).unwrap();
        // Its own key again, when only its certificate ends.
        let same = own.key().key_hash();
        checked(3, &same, shown, &own.vouch_for(&same).unwrap(), NOW).unwrap();
        let foreign = node(&Authority::found(1, at(NOW)).unwrap(), 3);
        let theirs = foreign.vouch_for(&hash).unwrap();
        let by_other = other.vouch_for(&hash).unwrap();
        let request = stranger.signing_request().unwrap();
        let of_stranger = SigningRequest::from_der(&request).unwrap().key_hash();
        for (what, refused) in [
            (
                "what was heard, for another key",
                checked(3, &of_stranger, shown, &proof, NOW),
            ),
            ("for another node", checked(4, &hash, shown, &proof, NOW)),
            (
                "another node, in its name",
                checked(3, &hash, other.certificate().der(), &by_other, NOW),
            ),
            (
                "another node's key, with its certificate",
                checked(3, &hash, shown, &by_other, NOW),
            ),
            (
                "an authority that nobody trusts",
                checked(3, &hash, foreign.certificate().der(), &theirs, NOW),
            ),
            (
                "a certificate that has ended",
                checked(3, &hash, shown, &proof, NOW + 3 * 365 * 86_400),
            ),
            (
                "the authority's certificate",
                checked(3, &hash, old.certificate().der(), &proof, NOW),
            ),
            ("no certificate", checked(3, &hash, &[], &proof, NOW)),
            ("no signature", checked(3, &hash, shown, &[], NOW)),
        ] {
            let refused = refused.expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::NotPermitted, "{what}");
        }
        // Once the old authority isn't trusted, what it has certified counts for nothing.
        let only_new = vec![new.certificate().clone()];
        let judge = judge.trusting(only_new).unwrap();
        let late = judge.check_vouched(NodeId(3), &hash, (shown, &proof), at(NOW));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::NotPermitted);
    }
}
