//! `cipher_list`: how connections between nodes are protected, and how a change of it spreads.
//!
//! Coordination says what was asked for, and which policy all nodes have or take over now. When all members have said that
//! they have it, the manager's node takes the next step ([`Policy::step_towards`]): between two steps all nodes take what
//! the others open. A node that starts begins with the policy of that moment. Connections that a node takes no more are left
//! for new ones.

use super::{InCluster, reports::standings};
use coordination::{Ciphers, Versioned};
use model::{Error, ErrorKind, NodeId, Result};
use rpc::security::{Mode, Policy};

/// What counts as long as nobody has set it.
pub const DEFAULT: Mode = Mode::AuthOnly;
/// Attempts of a change that collides with others'.
const ATTEMPTS_MAX: usize = 16;

/// What a text says that `cipher_list` is to be.
///
/// # Errors
/// `InvalidArgument`, with what can be said.
pub fn mode_of(text: &str) -> Result<Mode> {
    text.parse().map_err(|bad: rpc::security::BadMode| {
        Error::new(ErrorKind::InvalidArgument, bad.to_string())
    })
}

/// The policy that nodes have, or take over now.
///
/// # Errors
/// `NotSupported`: a newer version has written it.
pub fn policy_of(ciphers: Option<&Ciphers>) -> Result<Policy> {
    let Some(ciphers) = ciphers else {
        return Ok(Policy::only(DEFAULT));
    };
    ciphers
        .policy
        .parse()
        .map_err(|bad: rpc::security::BadMode| {
            let error = Error::new(ErrorKind::NotSupported, bad.to_string());
            error.while_doing("reading how the cluster protects connections")
        })
}

impl InCluster {
    /// `shale config get cipher_list`: the mode that was asked for, and whether anybody has.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn cipher_list(&self) -> Result<Option<String>> {
        let known = self.member().coordination().ciphers().await?;
        Ok(known.map(|it| it.value.wanted))
    }

    /// `shale config set cipher_list`; `None`: the default.
    ///
    /// # Errors
    /// `InvalidArgument`: it is no mode; those of coordination.
    pub async fn set_cipher_list(&self, value: Option<&str>) -> Result<()> {
        let wanted = value.map_or(Ok(DEFAULT), mode_of)?;
        let facts = self.member().coordination();
        for _ in 0..ATTEMPTS_MAX {
            let known = facts.ciphers().await?;
            let version = known.as_ref().map_or(0, |it| it.version);
            let before = known.map(|it| it.value);
            if before.is_none() && wanted == DEFAULT {
                return Ok(());
            }
            let next = Ciphers {
                wanted: wanted.to_string(),
                policy: policy_of(before.as_ref())?.to_string(),
            };
            if before.as_ref() == Some(&next) {
                return Ok(());
            }
            match facts.set_ciphers(version, &next).await {
                Err(error) if error.kind() == ErrorKind::Changed => {}
                other => return other.map(drop),
            }
        }
        let text = format!("cipher_list was changed by others {ATTEMPTS_MAX} times; try again");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Takes the policy over that coordination names. Connections that were made before and aren't taken any more are
    /// ended, which takes some seconds. Returns the policy if it is another one than before.
    ///
    /// # Errors
    /// As [`policy_of`]; `Corrupt` if TLS can't use it.
    pub async fn follow_ciphers(&self, ciphers: Option<&Ciphers>) -> Result<Option<Policy>> {
        let (before, now) = (self.policy(), policy_of(ciphers)?);
        if before == now {
            return Ok(None);
        }
        self.set_policy(now.clone())?;
        tracing::info!(policy = %now, "connections are protected in this way from now on");
        if !now.takes_all_of(&before) {
            self.member().renew_connections().await;
        }
        Ok(Some(now))
    }

    /// Takes the next step of a change, if all members have made the last one. For the manager's node; it does no harm if
    /// several do it.
    ///
    /// # Errors
    /// Those of coordination.
    pub async fn lead_ciphers(&self, known: &Versioned<Ciphers>) -> Result<()> {
        let wanted = mode_of(&known.value.wanted)?;
        let Some(next) = policy_of(Some(&known.value))?.step_towards(wanted) else {
            return Ok(());
        };
        let facts = self.member().coordination();
        let said = facts.said_of_security().await?;
        let standings = standings(&self.member().roster());
        let members = standings.iter().filter(|(_, it)| it.is_member());
        let has_made = |node: &NodeId| {
            let said = said.get(node);
            said.is_some_and(|it| it.policy == known.value.policy)
        };
        if !members.map(|(node, _)| node).all(has_made) {
            return Ok(());
        }
        tracing::info!(policy = %next, "all members take over how connections are protected");
        let next = Ciphers {
            policy: next.to_string(),
            ..known.value.clone()
        };
        match facts.set_ciphers(known.version, &next).await {
            // Somebody else has.
            Err(error) if error.kind() == ErrorKind::Changed => Ok(()),
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_nobody_has_set_is_the_default_and_one_that_is_unknown_is_refused() {
        assert_eq!(policy_of(None).unwrap(), Policy::only(Mode::AuthOnly));
        let ciphers = |policy: &str| Ciphers {
            wanted: "EMPTY".into(),
            policy: policy.into(),
        };
        let both = policy_of(Some(&ciphers("AUTHONLY also EMPTY"))).unwrap();
        assert_eq!(both, Policy::only(Mode::AuthOnly).also_taking(Mode::Off));
        // Whatever is unknown never stands for less protection.
        for unknown in ["", "AUTHONLY also", "TLS_OF_TOMORROW", "EMPTY or so"] {
            let refused = policy_of(Some(&ciphers(unknown))).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotSupported, "{unknown}");
        }
        let wrong = mode_of("DES").unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::InvalidArgument);
        assert!(
            wrong.to_string().contains("TLS_AES_128_GCM_SHA256"),
            "{wrong}"
        );
    }
}
