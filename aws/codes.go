// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"slices"
	"strings"
	"time"
)

// A meaning says what certain errors of EC2 mean for this suite. The fields codes and text select these errors.
type meaning struct {
	codes []string // the error has one of these codes; "*" at the beginning of a code stands for any text
	// the error's message contains this text, in upper or lower case. EC2 uses some codes, such as
	// InvalidParameterValue, for many errors
	text       string
	sentinel   error         // nil: none
	scopes     scopes        // which other calls EC2 would refuse, too
	remembered time.Duration // maximum time for which a node remembers the refusal; 0: not at all
	hint       string        // for the operator; {action} stands for the action
}

func (m *meaning) matches(code, message string) bool {
	return strings.Contains(strings.ToLower(message), m.text) &&
		slices.ContainsFunc(m.codes, func(c string) bool {
			suffix, isSuffix := strings.CutPrefix(c, "*")
			return c == code || isSuffix && strings.HasSuffix(code, suffix)
		})
}

// These are the times for which a node remembers a refusal. With passingTime, the cause disappears by itself. With
// lastingTime, an operator must change something. With correctableTime, the operator can do this within seconds, for
// example by a change of the instance role.
const (
	lastingTime     = 5 * time.Minute
	correctableTime = time.Minute
	passingTime     = 10 * time.Second
)

// meanings is the table of EC2's errors. The meaning of an error is the first row that matches the error.
//
// The comment before a row names the source of the row. "API" is
// docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html. "#1634" is issue 1634 of aws/amazon-vpc-cni-k8s,
// which quotes EC2's answer. For an issue of another repository, the name of the repository precedes the "#".
var meanings = []meaning{
	// The first code: API, server errors. The other codes: the SDK's list of throttling errors.
	{[]string{"RequestLimitExceeded", "EC2ThrottledException", "Throttling", "ThrottlingException", "RequestThrottled",
		"RequestThrottledException", "ThrottledException", "TooManyRequestsException", "SlowDown"}, "", ErrThrottled,
		ofAll(ScopeAction), 0,
		"EC2 limits how often the whole account may call {action}: to make fewer calls, use larger batches " +
			"(ipBatchSize), prefixes, or ENIs from the launch template"},

	// API.
	{[]string{"InsufficientFreeAddressesInSubnet"}, "", ErrSubnetFull, ofPlace, 0, hintSubnet},
	// API, server errors: "Reduce the number of addresses you are requesting or wait".
	{[]string{"InsufficientAddressCapacity"}, "", ErrSubnetFull, ofPlace, 0,
		"EC2 has too few addresses at the moment: wait, or request fewer at once (ipBatchSize)"},
	// Not in the API's list; #1634, #2749, #3105.
	{[]string{"InsufficientCidrBlocks"}, "", ErrSubnetFull, ofPlace, 0, hintFragmented},
	// #3105: EC2's answer to CreateNetworkInterface with IPv4 prefixes. There is no known report of this error with
	// IPv6 prefixes.
	{[]string{"InvalidParameterValue"}, "sufficient free ipv", ErrSubnetFull, ofPlace, 0, hintFragmented},

	// API. In #989, EC2 answered with the first code, because another program had changed the ENI's addresses.
	{[]string{"PrivateIpAddressLimitExceeded", "InvalidInterface.IpAddressLimitExceeded"}, "", ErrENIFull,
		ofENI, 0, ""},
	// API. The source of the hint about EBS volumes: EC2 user guide, "Volume limits for Nitro-based instances".
	{[]string{"AttachmentLimitExceeded"}, "", ErrInstanceFull, ofAll(ScopeInstance), 0,
		"the instance has as many attachments as its type allows. On most Nitro types, EBS volumes take slots of " +
			"ENIs: detach volumes, use prefixes, a larger type, or fewer pods (cni-ipvlan-vpc-k8s-tool maxpods)"},
	// API.
	{[]string{"NetworkInterfaceLimitExceeded"}, "", ErrQuota, ofAll(ScopeAccount), 0,
		"delete unused ENIs (cni-ipvlan-vpc-k8s-tool eni-gc), or ask AWS to raise the quota of network interfaces in " +
			"this region"},
	// The first row: API. The second row: amazon-vpc-resource-controller-k8s#583.
	{[]string{"SecurityGroupsPerInterfaceLimitExceeded"}, "", ErrTooManyGroups, ofAll(ScopeCall), 0, hintGroups},
	{[]string{"InvalidParameterValue"}, "security group memberships", ErrTooManyGroups, ofAll(ScopeCall), 0,
		hintGroups},

	// The first code: ansible/ansible-modules-core#347. The second code: philips-software/terraform-provider-hsdp#68.
	{[]string{"InvalidParameter", "InvalidParameterValue"}, "belong to different networks", ErrNoGroup,
		ofAll(ScopeCall), 0, hintGroup},
	// API.
	{[]string{"InvalidGroup.NotFound", "InvalidSecurityGroupID.NotFound"}, "", ErrNoGroup, ofAll(ScopeCall),
		0, hintGroup},

	// aws/aws-k8s-tester#531 quotes a message with this text. The instance had several network cards.
	{[]string{"InvalidParameterValue"}, "device index exceeds the maximum number of network interfaces", ErrCardFull,
		ofAll(ScopeInstance), 0, ""},
	// The source of the next two texts is pkg/aws/eni/node.go of cilium/cilium, which searches EC2's messages for these
	// texts.
	{[]string{"InvalidParameterValue"}, "already has an interface attached at device index", ErrIndexTaken,
		ofAll(ScopeCall), 0, ""},
	{[]string{"InvalidParameterValue"}, "is not 'running'", ErrNotRunning, ofAll(ScopeInstance), 0,
		"the instance is stopping"},
	// API: EC2 answers with these codes if an address or an ENI is in use.
	{[]string{"Resource.AlreadyAssigned", "Resource.AlreadyAssociated", "InvalidIPAddress.InUse",
		"InvalidNetworkInterface.InUse"}, "", ErrInUse, ofENI, 0, ""},
	// API: the first of the next two rows matches EC2's answer to DeleteNetworkInterface if the ENI is attached. If an
	// address is in use, EC2's answer matches one of the two rows.
	{[]string{"InvalidParameterValue"}, "in use", ErrInUse, ofENI, 0, ""},
	{[]string{"InvalidParameterValue"}, "already assigned", ErrInUse, ofENI, 0, ""},
	// API.
	{[]string{"DependencyViolation"}, "", ErrInUse, ofENI, 0, ""},

	// API: InvalidNetworkInterfaceID.NotFound, InvalidAttachmentID.NotFound, InvalidSubnetID.NotFound and so on.
	// Shortly after the creation of an object, a code "*.NotFound" does not prove that the object is missing (API
	// Reference, "Eventual consistency").
	{[]string{"*.NotFound", "InvalidInstanceType"}, "", ErrNotFound, ofENI, 0, ""},

	// IAM user guide, "Policy evaluation logic" and "Troubleshoot access denied error messages": a Deny overrides every
	// Allow.
	{unauthorizedCodes, "explicit deny", ErrDenied, ofRole, correctableTime,
		"a policy denies ec2:{action} explicitly, so an Allow in the instance role changes nothing. Look at the " +
			"policies of the role, at its permissions boundary, and at the organization's policies (SCP, RCP)"},
	{unauthorizedCodes, "no service control policy allows", ErrDenied, ofRole, correctableTime,
		"allow ec2:{action} in the service control policies of the organization (SCP)"},
	{unauthorizedCodes, "no permissions boundary allows", ErrDenied, ofRole, correctableTime,
		"allow ec2:{action} in the permissions boundary of the instance role"},
	// If a message matches the next row, only the encoded part of the message has the reason. An operator with the
	// permission for sts:DecodeAuthorizationMessage can decode this part (API: UnauthorizedOperation).
	{unauthorizedCodes, "operation. encoded authorization failure message", ErrDenied, ofRole, correctableTime,
		"allow ec2:{action} in the instance role. If the role allows ec2:{action} already, another policy denies " +
			"ec2:{action}: CloudTrail has the whole message, and 'aws sts decode-authorization-message' shows that " +
			"policy"},
	// API.
	{unauthorizedCodes, "", ErrDenied, ofRole, correctableTime, "allow ec2:{action} in the instance role"},
	// API: the timestamp of the request differs from EC2's time by more than 15 minutes, because the clock of this
	// machine is wrong. EC2 also answers RequestExpired if temporary credentials have expired (aws/aws-sdk-ruby#143).
	{clockCodes, "", ErrDenied, ofAll(ScopeInstance), 0,
		"set the clock of this machine (chronyc tracking). If the clock is right, " + hintExpired},
	// API, common errors; aws/aws-sdk-go#253.
	{[]string{"ExpiredToken", "ExpiredTokenException"}, "", ErrDenied, ofAll(ScopeInstance), 0, hintExpired},
	// API: EC2 also answers AuthFailure for objects of another account, such as a shared subnet or ENI.
	{[]string{"AuthFailure"}, "not own", ErrDenied, ofPlace, lastingTime, hintOwner},
	{[]string{"AuthFailure"}, "owner", ErrDenied, ofPlace, lastingTime, hintOwner},
	{[]string{"AuthFailure"}, "belong", ErrDenied, ofPlace, lastingTime, hintOwner},
	// API.
	{[]string{"AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidSignatureException",
		"MissingAuthenticationToken",
		"UnrecognizedClientException"}, "", ErrDenied, ofAll(ScopeAccount), 0,
		"EC2 refuses the credentials: check the instance role, AWS_ACCESS_KEY_ID in the environment, and the clock"},
	// The metadata service returns this code instead of the role's credentials.
	{[]string{"AssumeRoleUnauthorizedAccess"}, "", ErrDenied, ofAll(ScopeAccount), 0,
		"the role of the instance profile must trust ec2.amazonaws.com"},
	// API.
	{[]string{"OptInRequired", "Blocked", "PendingVerification"}, "", ErrDenied, ofAll(ScopeAccount), 0,
		"the AWS account cannot use EC2 in this region"},
	{[]string{"TagPolicyViolation"}, "", ErrDenied, ofAll(ScopeCall), 0,
		"a tag policy of the organization forbids one of the ENI's tags (eniTags)"},
	// API: EC2 also answers with this code if an AWS service manages the ENI.
	{[]string{"OperationNotPermitted"}, "", ErrDenied, ofPlace, lastingTime,
		"EC2 does not permit {action} here: an AWS service or another account manages this ENI or subnet; the node " +
			"uses other ENIs and subnets"},
	// API: the instance type, the subnet or its Outpost does not support the action.
	{[]string{"UnsupportedOperation", "Unsupported"}, "", nil, ofPlace, lastingTime,
		"this ENI or subnet does not support {action}: check its type and its VPC. The ENI or subnet may be in an " +
			"Outpost, a Local Zone or a Wavelength Zone"},

	// API: the caller has used the client token before, for a call with other parameters.
	{[]string{"IdempotentParameterMismatch"}, "", ErrTokenUsed, ofAll(ScopeCall), 0, ""},

	// API: the object is changing its state at the moment.
	{[]string{"IncorrectState", "IncorrectInstanceState", "InvalidState"}, "", ErrTransient, ofENI, passingTime, ""},
	{[]string{"ConcurrentTagAccess"}, "", ErrTransient, ofAll(ScopeCall), 0, ""},
	// API, server errors: EC2 may have carried out the call.
	{serverErrors, "", ErrTransient, ofAll(ScopeUnknown), 0,
		"EC2 has a problem in this region: see health.aws.amazon.com"},

	// API. Rows above with the same codes match only messages that contain a certain text. This row is for all other
	// messages.
	{[]string{"InvalidParameterValue", "InvalidParameter", "InvalidParameterCombination", "InvalidParameterDependency",
		"MissingParameter",
		"UnknownParameter", "InvalidRequest", "ValidationError"}, "", nil, ofPlace, correctableTime,
		"EC2 does not accept what {action} asks for: EC2's message says why. If the configuration is not the cause, " +
			"report a bug with the ID of the request"},
}

// serverErrors are the codes with which EC2 reports that EC2 itself has a fault.
var serverErrors = []string{"InternalError", "InternalFailure", "ServerInternal", "Unavailable", "ServiceUnavailable",
	"RequestTimeout"}

// unknownCode is the meaning of a code for which the table of meanings has no row.
var unknownCode = meaning{scopes: ofPlace, remembered: correctableTime,
	hint: "this release does not know the code of this refusal: the list of EC2's codes is in the EC2 API reference, " +
		"\"Error codes\". AWS's support finds the call by the ID of the request"}

var unauthorizedCodes = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}

// clockCodes are the codes with which EC2 refuses a request because of the request's timestamp. Only RequestExpired has
// another possible cause: expired credentials.
var clockCodes = []string{"RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"}

// The meanings of errors that have no code from EC2.
var (
	noRole = meaning{sentinel: ErrDenied,
		hint: "attach an instance profile whose role allows ec2:{action}"}
	noAnswer = meaning{sentinel: ErrTransient,
		hint: "this node cannot reach the EC2 endpoint: it needs a NAT gateway, an internet gateway, or a VPC " +
			"endpoint for ec2"}
	noName = meaning{sentinel: ErrTransient,
		hint: "the name of the EC2 endpoint does not exist: check the node's DNS, and AWS_REGION, " +
			"AWS_ENDPOINT_URL_EC2, AWS_USE_FIPS_ENDPOINT and AWS_USE_DUALSTACK_ENDPOINT; not every region has FIPS " +
			"and dual-stack endpoints"}
	noTrust = meaning{sentinel: ErrTransient,
		hint: "the node does not trust the certificate of the EC2 endpoint: if a proxy intercepts TLS, set " +
			"AWS_CA_BUNDLE to a file with the proxy's CA; also check the clock"}
	notEC2 = meaning{sentinel: ErrTransient,
		hint: "another server answers instead of EC2: check HTTPS_PROXY, NO_PROXY, AWS_ENDPOINT_URL_EC2, and proxies " +
			"between the node and EC2"}
	serverFault = meaning{sentinel: ErrTransient}
)

const (
	hintExpired = "the temporary credentials have expired: renew AWS_SESSION_TOKEN and the other keys in the " +
		"environment. If the environment has no keys, look at the role's credentials in the metadata service"
	hintSubnet     = "add another subnet for pods to the VPC, with the tags in subnetTags"
	hintFragmented = "the subnet has no free /28: reserve a part of the subnet for prefixes (aws ec2 " +
		"create-subnet-cidr-reservation), or add a subnet"
	hintOwner = "another account owns this ENI or subnet, and does not let this account change it. Use subnets that " +
		"are shared with this account (AWS RAM). If the ENI is not for this node, detach it"
	hintGroup  = "use the IDs of security groups of this VPC (secGroupIds)"
	hintGroups = "remove groups from secGroupIds, or ask AWS to raise the quota of security groups per network " +
		"interface"
)
