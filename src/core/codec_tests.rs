//! The codec's bytes are pinned here: what was written once must be readable for ever.

use super::*;
use crate::core::fence::FENCE_END;
use proptest::prelude::*;

const V1: &[u8] = b"\x01\x01\x39\x30\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0\x03tok\x05label";
const V2: &[u8] = b"\x02\x02\x0f\x39\x30\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0\x88\x13\0\0\0\0\0\0\x07\0\0\0\x03tok\x05label\x02\0\x01a\x02bc";

fn plain() -> Holder<'static> {
    Holder {
        token: Token::new(b"tok").unwrap(),
        fence: Fence::new(12_345).unwrap(),
        lease: Lease::from_ms(1_000).unwrap(),
        label: Label::new(b"label").unwrap(),
        mode: Mode::Exclusive,
        unnamed: true,
        names: NameList::Many(Vec::new()),
        cap_ms: None,
    }
}

fn rich() -> Holder<'static> {
    Holder {
        mode: Mode::Shared(Some(7)),
        names: [b"a".as_slice(), b"bc"].iter().filter_map(|name| HoldName::new(name)).collect(),
        cap_ms: Some(5_000),
        ..plain()
    }
}

fn set(holder: Holder<'_>) -> Change<'_> {
    Change::Set { holder, alone: true }
}

fn bytes_of(change: &Change<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(change, &mut bytes);
    bytes
}

fn with(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[at..at + new.len()].copy_from_slice(new);
    changed
}

#[test]
fn the_bytes_of_each_version_are_pinned() {
    for (change, bytes) in [(set(plain()), V1), (set(rich()), V2)] {
        assert_eq!(bytes_of(&change), bytes);
        assert_eq!(decode(bytes), Ok(change));
    }
    let removed = Change::Removed(Token::new(b"tok").unwrap());
    assert_eq!(bytes_of(&removed), b"\x02\x03\x03tok");
    assert_eq!(decode(b"\x02\x03\x03tok"), Ok(removed));
}

#[test]
fn every_prefix_is_truncated() {
    for bytes in [V1, V2] {
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), Err(Corrupt::Truncated), "{len} bytes");
            assert!(decode_lock(&bytes[..len]).is_err(), "{len} bytes");
        }
    }
}

#[test]
fn each_fault_of_version_1_has_its_reason() {
    assert_eq!(decode(&with(V1, 0, &[3])), Err(Corrupt::Newer));
    assert_eq!(decode(&with(V1, 0, &[0])), Err(Corrupt::Kind));
    assert_eq!(decode(&with(V1, 1, &[2])), Err(Corrupt::Kind));
    assert_eq!(decode(&with(V1, 2, &[0; 8])), Err(Corrupt::Fence));
    assert_eq!(decode(&with(V1, 2, &FENCE_END.to_le_bytes())), Err(Corrupt::Fence));
    assert_eq!(decode(&with(V1, 10, &[0; 8])), Err(Corrupt::Lease));
    assert_eq!(decode(&with(V1, 10, &(LEASE_MS_MAX + 1).to_le_bytes())), Err(Corrupt::Lease));
    assert_eq!(decode(&[V1, b"\0"].concat()), Err(Corrupt::Trailing));
    assert_eq!(decode(&[&V1[..18], b"\0\0"].concat()), Err(Corrupt::Token));
    assert_eq!(decode(&[&V1[..18], &[129], &[b'x'; 129], &[0]].concat()), Err(Corrupt::Token));
    assert_eq!(decode(&[&V1[..22], &[129], &[b'x'; 129]].concat()), Err(Corrupt::Label));
}

#[test]
fn each_fault_of_version_2_has_its_reason() {
    assert_eq!(decode(&with(V2, 1, &[4])), Err(Corrupt::Kind));
    assert_eq!(decode(&with(V2, 2, &[0x1f])), Err(Corrupt::Kind));
    assert_eq!(decode(&with(V2, 1, &[1])), Err(Corrupt::Kind), "an exclusive holder has no limit");
    assert_eq!(decode(&with(V2, 19, &(LEASE_MS_MAX + 1).to_le_bytes())), Err(Corrupt::Lease));
    assert_eq!(decode(&with(V2, 27, &[0; 4])), Err(Corrupt::Limit));
    let names = V2.len() - 7;
    assert_eq!(decode(&with(V2, names, &[0xff, 0xff])), Err(Corrupt::Holds));
    assert_eq!(decode(&with(V2, V2.len() - 4, b"z")), Err(Corrupt::Holds), "names ascend");
    assert_eq!(decode(&[&V2[..names], b"\x01\0\0"].concat()), Err(Corrupt::Holds));
    let mut nothing_held = [&V2[..names], b"\0\0"].concat();
    nothing_held[2] = 0x0e;
    assert_eq!(decode(&nothing_held), Err(Corrupt::Holds));
}

#[test]
fn a_lock_is_one_holder_or_several_that_share() {
    let other = Holder { fence: Fence::new(12_346).unwrap(), token: Token::new(b"other").unwrap(), ..rich() };
    let shared = [V2, &bytes_of(&set(other.clone()))].concat();
    assert_eq!(decode_lock(&shared), Ok(vec![rich(), other.clone()]));
    let backwards = [&bytes_of(&set(other))[..], V2].concat();
    assert_eq!(decode_lock(&backwards), Err(Corrupt::Fence));
    for again in [rich(), Holder { fence: Fence::new(12_346).unwrap(), ..rich() }] {
        assert_eq!(decode_lock(&[V2, &bytes_of(&set(again))].concat()), Err(Corrupt::Token));
    }
    let one_fence = Holder { token: Token::new(b"tol").unwrap(), ..rich() };
    let shared = [V2, &bytes_of(&set(one_fence.clone()))].concat();
    assert_eq!(decode_lock(&shared), Ok(vec![rich(), one_fence.clone()]));
    let backwards = [&bytes_of(&set(one_fence))[..], V2].concat();
    assert_eq!(decode_lock(&backwards), Err(Corrupt::Fence), "then in the order of tokens");
    let second = Holder { fence: Fence::new(12_346).unwrap(), token: Token::new(b"other").unwrap(), ..plain() };
    assert_eq!(decode_lock(&[V1, &bytes_of(&set(second))].concat()), Err(Corrupt::Trailing));
    assert_eq!(decode_lock(b"\x02\x03\x03tok"), Err(Corrupt::Kind));
    assert_eq!(decode_lock(b""), Err(Corrupt::Truncated));
}

prop_compose! {
    fn any_parts()(
        token in proptest::collection::vec(any::<u8>(), 1..=128),
        label in proptest::collection::vec(any::<u8>(), 0..=128),
        names in proptest::collection::btree_set(proptest::collection::vec(any::<u8>(), 1..=64), 0..5),
        numbers in (1..FENCE_END, 1..=LEASE_MS_MAX),
        cap_ms in proptest::option::of(0..=LEASE_MS_MAX),
        mode in prop_oneof![
            Just(Mode::Exclusive),
            proptest::option::of(1..=u32::MAX).prop_map(Mode::Shared),
        ],
        unnamed in any::<bool>(),
    ) -> (Vec<u8>, Vec<u8>, Vec<Vec<u8>>, (u64, u64), Option<u64>, Mode, bool) {
        (token, label, names.into_iter().collect(), numbers, cap_ms, mode, unnamed)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(parts in any_parts(), alone in any::<bool>()) {
        let (token, label, names, (fence, lease_ms), cap_ms, mode, unnamed) = parts;
        let holder = Holder {
            token: Token::new(&token).unwrap(),
            fence: Fence::new(fence).unwrap(),
            lease: Lease::from_ms(lease_ms).unwrap(),
            label: Label::new(&label).unwrap(),
            mode,
            unnamed: unnamed || names.is_empty(),
            names: names.iter().map(|name| HoldName::new(name).unwrap()).collect(),
            cap_ms,
        };
        let change = Change::Set { holder: holder.clone(), alone: alone || mode == Mode::Exclusive };
        let bytes = bytes_of(&change);
        prop_assert_eq!(decode(&bytes), Ok(change));
        prop_assert_eq!(decode_lock(&bytes), Ok(vec![holder]));
    }

    #[test]
    fn whatever_is_read_can_be_written_and_read_again(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(change) = decode(&bytes) {
            let again = bytes_of(&change);
            prop_assert_eq!(decode(&again), Ok(change));
        }
    }

    #[test]
    fn no_byte_more_or_other_makes_it_panic(at in 0..V2.len(), byte in any::<u8>(), more in any::<Vec<u8>>()) {
        let bytes = [&with(V2, at, &[byte])[..], &more].concat();
        let _ = (decode(&bytes), decode_lock(&bytes));
    }
}
