//! Which libraries are accepted, and what a communicator is configured with.

use super::*;

#[test]
fn versions_are_decoded_in_both_forms() {
    let text = |code| Version::from_code(code).to_string();
    assert_eq!([2708, 22_703, 23_203].map(text), ["2.7.8", "2.27.3", "2.32.3"]);
    assert!(Version::from_code(2804) < MIN_VERSION);
}

#[test]
fn another_library_is_not_nccl() {
    let library = Library::open(Path::new("libm.so.6")).unwrap();
    let error = Nccl::of(library, None).unwrap_err();
    let function = "ncclGetVersion";
    assert_eq!(error, NcclError::NotNccl { library: "libm.so.6".into(), function });
}

#[test]
fn the_variable_names_the_file_or_its_folder() {
    let (stub, nccl) = Stub::opened();
    let file = stub.dir.path().join("libnccl.so.2");
    assert_eq!(nccl.library(), file);
    assert_eq!(find::open(Some(file.as_os_str()), &[]).unwrap().path, file);
}

#[test]
fn a_library_without_a_function_is_named_with_it() {
    let stub = Stub::of(&compile(&["--cfg=lacks_abort"]), 23_203);
    let error = stub.nccl(None).unwrap_err();
    let library = stub.dir.path().join("libnccl.so.2");
    assert_eq!(error, NcclError::NotNccl { library, function: "ncclCommAbort" });
    let text = error.to_string();
    assert!(text.contains("has no ncclCommAbort: not NCCL 2.27.0 or newer\n"), "{text}");
}

#[test]
fn an_old_library_is_refused_before_its_functions_are_looked_for() {
    let stub = Stub::of(&compile(&["--cfg=lacks_abort"]), 22_605);
    let error = stub.nccl(Some("0")).unwrap_err();
    assert!(matches!(&error, NcclError::TooOld { found, .. } if found.minor == 26), "{error}");
    assert!(error.to_string().contains(" is NCCL 2.26.5, 2.27.0 or newer is needed\n"), "{error}");

    stub.set("ncclGetVersion", 3);
    let error = stub.nccl(Some("0")).unwrap_err();
    assert!(matches!(&error, NcclError::Call { call: "ncclGetVersion", status: 3, .. }), "{error}");
}

#[test]
fn without_the_variable_a_version_that_cannot_turn_multicast_off_is_refused() {
    let stub = Stub::new(23_102);
    for value in [None, Some(""), Some("1"), Some("2")] {
        let error = stub.nccl(value).unwrap_err();
        assert_eq!(error, NcclError::Multicast { found: Version::from_code(23_102) }, "{value:?}");
        assert!(error.to_string().contains("start with NCCL_NVLS_ENABLE=0"), "{error}");
    }
    assert_eq!(stub.nccl(Some("0")).unwrap().version(), Version::from_code(23_102));
    stub.set("version", 23_200);
    assert!(stub.nccl(Some("1")).is_ok());
}

/// `ncclConfig_t`: size, magic, version, and the fields that are not a default.
#[test]
fn the_configuration_has_the_size_and_the_fields_of_its_version() {
    let stub = Stub::new(22_703);
    let config = || {
        let nccl = stub.nccl(Some("0")).unwrap();
        drop(join_within(&nccl, Duration::from_secs(60)).unwrap());
        stub.calls().swap_remove(0)
    };
    let of_2_27 = "ncclCommInitRankConfig 1 of 4, id true, config 72 0xcafebeef 22700 16=0";
    assert_eq!(config(), of_2_27);
    stub.set("version", 23_102);
    assert_eq!(config(), of_2_27);
    stub.set("version", 23_203);
    let of_2_32 =
        "ncclCommInitRankConfig 1 of 4, id true, config 120 0xcafebeef 23200 16=0 112=2147483647";
    assert_eq!(config(), of_2_32);
}

#[test]
fn identifiers_pass_through_bytes() {
    let (stub, nccl) = Stub::opened();
    let id = nccl.unique_id().unwrap();
    let bytes: [u8; 128] = std::array::from_fn(|i| i as u8 + 100);
    assert_eq!((id.to_bytes(), UniqueId::from_bytes(&bytes)), (bytes, id));
    stub.set("ncclGetUniqueId", 4);
    let error = nccl.unique_id().unwrap_err();
    assert_eq!(error.to_string(), "ncclGetUniqueId failed with NCCL status 4: invalid argument");
}
