// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"slices"
	"strings"
)

// A meaning is what a group of EC2's errors means to us.
type meaning struct {
	codes []string // any of these; "*" stands for any text before a suffix
	text  string   // the message must contain this, in any case, because EC2 uses InvalidParameterValue for many errors
	is    error    // the sentinel
	hint  string   // for the operator; {action} is the action
}

func (m *meaning) matches(code, message string) bool {
	return strings.Contains(strings.ToLower(message), m.text) &&
		slices.ContainsFunc(m.codes, func(c string) bool {
			suffix, isSuffix := strings.CutPrefix(c, "*")
			return c == code || isSuffix && strings.HasSuffix(code, suffix)
		})
}

// meanings are tried from top to bottom.
//
// Sources: "API" is docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html. "#" is an issue of
// aws/amazon-vpc-cni-k8s that quotes the answer. Other repositories have their names.
var meanings = []meaning{
	// API, server errors. The other codes: the SDK's list of throttling errors.
	{[]string{"RequestLimitExceeded", "EC2ThrottledException", "Throttling", "ThrottlingException", "RequestThrottled",
		"RequestThrottledException", "ThrottledException", "TooManyRequestsException", "SlowDown"}, "", ErrThrottled,
		"EC2 limits how often the whole account may call {action}: to make fewer calls, use larger batches (ipBatchSize), prefixes, " +
			"or ENIs from the launch template"},

	// API.
	{[]string{"InsufficientFreeAddressesInSubnet"}, "", ErrSubnetFull, hintSubnet},
	// API, server errors: "Reduce the number of addresses you are requesting or wait".
	{[]string{"InsufficientAddressCapacity"}, "", ErrSubnetFull, "EC2 has too few addresses at the moment: wait, or request fewer at once (ipBatchSize)"},
	// Not in the API's list; #1634, #2749, #3105.
	{[]string{"InsufficientCidrBlocks"}, "", ErrSubnetFull, hintFragmented},
	// #3105: CreateNetworkInterface with IPv4 prefixes; for IPv6 no report is known.
	{[]string{"InvalidParameterValue"}, "sufficient free ipv", ErrSubnetFull, hintFragmented},

	// API; #989 shows it for an ENI whose addresses another program has changed.
	{[]string{"PrivateIpAddressLimitExceeded", "InvalidInterface.IpAddressLimitExceeded"}, "", ErrENIFull, ""},
	// API.
	{[]string{"AttachmentLimitExceeded"}, "", ErrInstanceFull,
		"the instance has as many ENIs as its type allows: use prefixes, a larger type, or fewer pods (cni-ipvlan-vpc-k8s-tool maxpods)"},
	// API.
	{[]string{"NetworkInterfaceLimitExceeded"}, "", ErrQuota,
		"delete unused ENIs (cni-ipvlan-vpc-k8s-tool eni-gc), or ask AWS to raise the quota of network interfaces in this region"},
	// API; the text: amazon-vpc-resource-controller-k8s#583.
	{[]string{"SecurityGroupsPerInterfaceLimitExceeded"}, "", ErrTooManyGroups, hintGroups},
	{[]string{"InvalidParameterValue"}, "security group memberships", ErrTooManyGroups, hintGroups},

	// ansible/ansible-modules-core#347 quotes the first, philips-software/terraform-provider-hsdp#68 the code of the second.
	{[]string{"InvalidParameter", "InvalidParameterValue"}, "belong to different networks", ErrNoGroup, hintGroup},
	// API.
	{[]string{"InvalidGroup.NotFound", "InvalidSecurityGroupID.NotFound"}, "", ErrNoGroup, hintGroup},

	// aws/aws-k8s-tester#531 quotes it, of an instance with several network cards.
	{[]string{"InvalidParameterValue"}, "device index exceeds the maximum number of network interfaces", ErrCardFull, ""},
	// cilium/cilium pkg/aws/eni/node.go looks for this text, and the next one.
	{[]string{"InvalidParameterValue"}, "already has an interface attached at device index", ErrIndexTaken, ""},
	{[]string{"InvalidParameterValue"}, "is not 'running'", ErrNotRunning, "the instance is stopping"},
	// API: an address, or an ENI, that is in use.
	{[]string{"Resource.AlreadyAssigned", "Resource.AlreadyAssociated", "InvalidIPAddress.InUse",
		"InvalidNetworkInterface.InUse"}, "", ErrInUse, ""},
	// API: the answer of DeleteNetworkInterface for an attached ENI; "in use" also for an address.
	{[]string{"InvalidParameterValue"}, "in use", ErrInUse, ""},
	{[]string{"InvalidParameterValue"}, "already assigned", ErrInUse, ""},
	// API.
	{[]string{"DependencyViolation"}, "", ErrInUse, ""},

	// API: InvalidNetworkInterfaceID.NotFound, InvalidAttachmentID.NotFound, InvalidSubnetID.NotFound and so on. Right
	// after a creation it proves nothing (API Reference, "Eventual consistency").
	{[]string{"*.NotFound", "InvalidInstanceType"}, "", ErrNotFound, ""},

	// API.
	{unauthorized, "", ErrDenied,
		"allow ec2:{action} in the instance role"},
	// API: the request is older than 15 minutes, by the clock of this machine.
	{[]string{"RequestExpired", "RequestTimeTooSkewed"}, "", ErrDenied, "set the clock of this machine (chronyc tracking)"},
	// API.
	{[]string{"AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "MissingAuthenticationToken",
		"UnrecognizedClientException"}, "", ErrDenied,
		"EC2 refuses the credentials: check the instance role, AWS_ACCESS_KEY_ID in the environment, and the clock"},
	// The metadata service answers with this code instead of the role's credentials.
	{[]string{"AssumeRoleUnauthorizedAccess"}, "", ErrDenied, "the role of the instance profile must trust ec2.amazonaws.com"},
	// API.
	{[]string{"OptInRequired", "Blocked", "PendingVerification"}, "", ErrDenied, "the AWS account cannot use EC2 in this region"},
	{[]string{"TagPolicyViolation"}, "", ErrDenied, "a tag policy of the organization forbids one of the ENI's tags (eniTags)"},
	{[]string{"OperationNotPermitted"}, "", ErrDenied, ""},

	// API: the token was used before, for a call with other parameters.
	{[]string{"IdempotentParameterMismatch"}, "", ErrTokenUsed, ""},

	// API: a transition is under way.
	{[]string{"IncorrectState", "IncorrectInstanceState", "InvalidState", "ConcurrentTagAccess"}, "", ErrTransient, ""},
	// API, server errors.
	{[]string{"InternalError", "InternalFailure", "ServerInternal", "Unavailable", "ServiceUnavailable", "RequestTimeout"}, "", ErrTransient,
		"EC2 has a problem in this region: see health.aws.amazon.com"},
}

// unauthorized are the codes of calls that the role may not make.
var unauthorized = []string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}

// The failures without a code of EC2.
var (
	noRole = meaning{is: ErrDenied,
		hint: "attach an instance profile whose role allows ec2:{action}"}
	noAnswer = meaning{is: ErrTransient,
		hint: "this node cannot reach the EC2 endpoint: it needs a NAT gateway, an internet gateway, or a VPC endpoint for ec2"}
	noName = meaning{is: ErrTransient,
		hint: "the name of the EC2 endpoint does not exist: check the node's DNS, and AWS_REGION, AWS_ENDPOINT_URL_EC2, AWS_USE_FIPS_ENDPOINT " +
			"and AWS_USE_DUALSTACK_ENDPOINT; not every region has FIPS and dual-stack endpoints"}
	noTrust = meaning{is: ErrTransient,
		hint: "the node does not trust the certificate of the EC2 endpoint: if a proxy intercepts TLS, set AWS_CA_BUNDLE to a file " +
			"with the proxy's CA; also check the clock"}
	notEC2 = meaning{is: ErrTransient,
		hint: "something else answers instead of EC2: check HTTPS_PROXY, NO_PROXY, AWS_ENDPOINT_URL_EC2, and proxies between the node and EC2"}
	serverFault = meaning{is: ErrTransient}
)

const (
	hintSubnet     = "add another subnet for pods to the VPC, with the tags in subnetTags"
	hintFragmented = "the subnet has no free /28: reserve a range of it for prefixes (aws ec2 create-subnet-cidr-reservation), " +
		"or add a subnet"
	hintGroup  = "use the IDs of security groups of this VPC (secGroupIds)"
	hintGroups = "remove groups from secGroupIds, or ask AWS to raise the quota of security groups per network interface"
)
