//! Server reflection, version 1 and 1alpha: clients such as grpcurl ask for the services and their
//! messages.

use prost::{Message, Oneof};

use super::descriptors::FileTable;

/// The paths of the one method, in both versions.
pub const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// `ServerReflectionRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ReflectionRequest {
    /// The host that the client asks.
    #[prost(string, tag = "1")]
    pub host: String,
    /// The question.
    #[prost(oneof = "ReflectionQuestion", tags = "3, 4, 6, 7")]
    pub message_request: Option<ReflectionQuestion>,
}

/// The question of a request.
#[derive(Clone, PartialEq, Oneof)]
pub enum ReflectionQuestion {
    /// The file of this name.
    #[prost(string, tag = "3")]
    FileByFilename(String),
    /// The file that defines this name.
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    /// The extensions of a message.
    #[prost(string, tag = "6")]
    ExtensionNumbers(String),
    /// The services.
    #[prost(string, tag = "7")]
    ListServices(String),
}

/// `ServerReflectionResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ReflectionResponse {
    /// The host of the request.
    #[prost(string, tag = "1")]
    pub valid_host: String,
    /// The request.
    #[prost(message, optional, tag = "2")]
    pub original_request: Option<ReflectionRequest>,
    /// The answer.
    #[prost(oneof = "ReflectionAnswer", tags = "4, 5, 6, 7")]
    pub message_response: Option<ReflectionAnswer>,
}

/// The answer of a response.
#[derive(Clone, PartialEq, Oneof)]
pub enum ReflectionAnswer {
    /// A file, and the files that it imports.
    #[prost(message, tag = "4")]
    Files(FileList),
    /// The extensions of a message.
    #[prost(message, tag = "5")]
    Extensions(ExtensionList),
    /// The services.
    #[prost(message, tag = "6")]
    Services(ServiceList),
    /// There is no answer.
    #[prost(message, tag = "7")]
    Error(ReflectionError),
}

/// `FileDescriptorResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct FileList {
    /// Encoded `FileDescriptorProto`.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub file_descriptor_proto: Vec<Vec<u8>>,
}

/// `ExtensionNumberResponse`: no message has an extension.
#[derive(Clone, PartialEq, Message)]
pub struct ExtensionList {
    /// The message.
    #[prost(string, tag = "1")]
    pub base_type_name: String,
}

/// `ListServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ServiceList {
    /// The services.
    #[prost(message, repeated, tag = "1")]
    pub service: Vec<ServiceName>,
}

/// `ServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ServiceName {
    /// The full name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// `ErrorResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ReflectionError {
    /// A gRPC status.
    #[prost(int32, tag = "1")]
    pub error_code: i32,
    /// What is wrong.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// Answers a request about `files`.
pub fn answer(request: ReflectionRequest, files: &[FileTable]) -> ReflectionResponse {
    use super::GrpcStatus::{InvalidArgument, NotFound};

    let error = |status: super::GrpcStatus, error_message: String| {
        ReflectionAnswer::Error(ReflectionError { error_code: status as i32, error_message })
    };
    let list = |found: Option<&FileTable>, asked: &str| match found {
        Some(file) => {
            let file_descriptor_proto = with_imports(file, files).map(FileTable::encode).collect();
            ReflectionAnswer::Files(FileList { file_descriptor_proto })
        }
        None => error(NotFound, format!("{asked} is not known")),
    };
    let answer = match &request.message_request {
        Some(ReflectionQuestion::ListServices(_)) => {
            let service = files.iter().flat_map(services).map(|name| ServiceName { name });
            ReflectionAnswer::Services(ServiceList { service: service.collect() })
        }
        Some(ReflectionQuestion::FileByFilename(name)) => {
            list(files.iter().find(|file| file.name == name), name)
        }
        Some(ReflectionQuestion::FileContainingSymbol(symbol)) => {
            let plain = symbol.strip_prefix('.').unwrap_or(symbol);
            list(files.iter().find(|file| file.defines(plain)), symbol)
        }
        Some(ReflectionQuestion::ExtensionNumbers(name)) => {
            ReflectionAnswer::Extensions(ExtensionList { base_type_name: name.clone() })
        }
        None => error(InvalidArgument, "the question is not supported".to_owned()),
    };
    ReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(answer),
    }
}

/// The full names of the services of a file.
pub fn services(file: &FileTable) -> impl Iterator<Item = String> {
    let package = file.package;
    file.services.iter().map(move |service| format!("{package}.{}", service.name))
}

/// A file, and all that it imports, each once.
fn with_imports<'f>(
    file: &'f FileTable,
    files: &'f [FileTable],
) -> impl Iterator<Item = &'f FileTable> {
    let mut found = vec![file];
    let mut next = 0;
    while let Some(file) = found.get(next) {
        next += 1;
        let imported = file.imports.iter();
        let imported = imported.filter_map(|name| files.iter().find(|other| other.name == *name));
        let new: Vec<&FileTable> =
            imported.filter(|other| found.iter().all(|own| own.name != other.name)).collect();
        found.extend(new);
    }
    found.into_iter()
}
