//! The label of a holder that gave none: its connection's CLIENT SETNAME name, else its address.

use crate::server::cell::MainThread;
use crate::server::context::{Context, OwnedString};

/// Addresses kept, by client id. Asking the server for one is a system call, and a connection's never changes.
const ADDRESSES_KEPT: usize = 4_096;

/// Longest address: of IPv6 in brackets, with a colon and a port.
const ADDRESS_BYTES_MAX: usize = 56;

/// A connection's address, small enough to be copied out of the cache.
#[derive(Clone, Copy)]
pub struct Address {
    client: u64,
    bytes: [u8; ADDRESS_BYTES_MAX],
    len: u8,
}

static ADDRESSES: MainThread<Vec<Option<Box<Address>>>> = MainThread::new(Vec::new());

/// A label made for a connection.
pub enum OwnLabel {
    /// Its name.
    Name(OwnedString),
    /// Its address; empty in scripts, which have no connection of their own.
    Address(Address),
}

impl OwnLabel {
    /// The label's bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Name(name) => name.bytes(),
            Self::Address(address) => address.bytes.get(..address.len as usize).unwrap_or_default(),
        }
    }
}

impl Address {
    fn new(client: u64, text: &str) -> Self {
        let mut address = Self { client, bytes: [0; ADDRESS_BYTES_MAX], len: 0 };
        for (byte, place) in text.bytes().zip(&mut address.bytes) {
            *place = byte;
            address.len += 1;
        }
        address
    }
}

/// The label of this connection; 0 is none.
pub fn of_client(context: &Context, client: u64) -> OwnLabel {
    if client == 0 {
        return OwnLabel::Address(Address::new(0, ""));
    }
    if let Some(name) = context.client_name(client).filter(|name| !name.bytes().is_empty()) {
        return OwnLabel::Name(name);
    }
    let slot = client as usize % ADDRESSES_KEPT;
    let kept = ADDRESSES.with(|addresses| addresses.get(slot)?.as_deref().copied());
    OwnLabel::Address(kept.filter(|address| address.client == client).unwrap_or_else(|| {
        let address = Address::new(client, &context.client_address(client).unwrap_or_default());
        ADDRESSES.with(|addresses| {
            addresses.resize_with(ADDRESSES_KEPT, || None);
            if let Some(entry) = addresses.get_mut(slot) {
                *entry = Some(Box::new(address));
            }
        });
        address
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_address_fits() {
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]:65535";
        assert!(longest.len() <= ADDRESS_BYTES_MAX);
        assert_eq!(OwnLabel::Address(Address::new(1, longest)).bytes(), longest.as_bytes());
        assert_eq!(OwnLabel::Address(Address::new(1, "")).bytes(), b"");
    }
}
