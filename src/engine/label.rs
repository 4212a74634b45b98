//! The label of a holder that gave none: its connection's CLIENT SETNAME name, else its address.

use crate::core::name::Label;
use crate::core::packed::Short;
use crate::server::cell::MainThread;
use crate::server::context::{Context, OwnedString};
use std::rc::Rc;

/// Addresses kept, by client id. Asking the server for one is a system call, and a connection's never changes.
const ADDRESSES_KEPT: usize = 4_096;

/// A connection's address, and how locks keep it.
pub struct Address {
    client: u64,
    text: String,
    short: Short,
}

static ADDRESSES: MainThread<Vec<Option<Rc<Address>>>> = MainThread::new(Vec::new());

/// A label made for a connection.
pub enum OwnLabel {
    /// Its name.
    Name(OwnedString),
    /// Its address.
    Address(Rc<Address>),
    /// None: scripts have no connection of their own.
    Empty,
}

impl OwnLabel {
    /// The label.
    pub fn label(&self) -> Label<'_> {
        match self {
            Self::Name(name) => Label::cut(name.bytes()),
            Self::Address(address) => Label::known(address.text.as_bytes(), address.short),
            Self::Empty => Label::cut(b""),
        }
    }
}

/// The label of this connection; 0 is none.
pub fn of_client(context: &Context, client: u64) -> OwnLabel {
    if client == 0 {
        return OwnLabel::Empty;
    }
    if let Some(name) = context.client_name(client).filter(|name| !name.bytes().is_empty()) {
        return OwnLabel::Name(name);
    }
    let slot = client as usize % ADDRESSES_KEPT;
    let kept = ADDRESSES.with(|addresses| addresses.get(slot)?.clone());
    OwnLabel::Address(kept.filter(|address| address.client == client).unwrap_or_else(|| {
        let text = context.client_address(client).unwrap_or_default();
        let address = Rc::new(Address { client, short: Short::of(text.as_bytes()), text });
        ADDRESSES.with(|addresses| {
            addresses.resize_with(ADDRESSES_KEPT, || None);
            if let Some(entry) = addresses.get_mut(slot) {
                *entry = Some(address.clone());
            }
        });
        address
    }))
}
