//! The label of a holder that gave none: its connection's CLIENT SETNAME name, else its address.

use crate::server::cell::MainThread;
use crate::server::context::{Context, OwnedString};

/// Addresses kept, by client id. Asking the server for one is a system call, and a connection's never changes.
const ADDRESSES_KEPT: usize = 256;

struct Address {
    client: u64,
    text: String,
}

static ADDRESSES: MainThread<Vec<Option<Address>>> = MainThread::new(Vec::new());

/// A label made for a connection.
pub enum OwnLabel {
    /// Its name.
    Name(OwnedString),
    /// Its address; empty in scripts and in calls by other modules, which have no connection of their own.
    Address(String),
}

impl OwnLabel {
    /// The label's bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Name(name) => name.bytes(),
            Self::Address(address) => address.as_bytes(),
        }
    }
}

/// The label of this connection; 0 is none.
pub fn of_client(context: &Context, client: u64) -> OwnLabel {
    if client == 0 {
        return OwnLabel::Address(String::new());
    }
    if let Some(name) = context.client_name(client).filter(|name| !name.bytes().is_empty()) {
        return OwnLabel::Name(name);
    }
    let slot = client as usize % ADDRESSES_KEPT;
    let kept = ADDRESSES.with(|addresses| {
        let address = addresses.get(slot)?.as_ref()?;
        (address.client == client).then(|| address.text.clone())
    });
    let text = kept.unwrap_or_else(|| {
        let text = context.client_address(client).unwrap_or_default();
        ADDRESSES.with(|addresses| {
            addresses.resize_with(ADDRESSES_KEPT, || None);
            if let Some(entry) = addresses.get_mut(slot) {
                *entry = Some(Address { client, text: text.clone() });
            }
        });
        text
    });
    OwnLabel::Address(text)
}
