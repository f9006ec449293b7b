// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"slices"
	"strings"
)

// A meaning is what some of EC2's errors mean to us.
type meaning struct {
	codes []string // any of these; "*" stands for what comes before a suffix
	text  string   // and this in the message, in any case, because EC2 uses InvalidParameterValue for much
	is    error    // the sentinel
	hint  string   // to the operator; {action} is the action
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
// Sources: "API" is docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html,
// "#" an issue of aws/amazon-vpc-cni-k8s in which the answer is quoted, and other
// repositories by their name.
var meanings = []meaning{
	// API, server errors. The other codes: the SDK's list of throttling errors.
	{[]string{"RequestLimitExceeded", "EC2ThrottledException", "Throttling", "ThrottlingException", "RequestThrottled",
		"RequestThrottledException", "ThrottledException", "TooManyRequestsException", "SlowDown"}, "", ErrThrottled,
		"EC2 limits how often the whole account may call {action}: larger batches (ipBatchSize), prefixes, " +
			"or ENIs from the launch template need fewer calls"},

	// API.
	{[]string{"InsufficientFreeAddressesInSubnet"}, "", ErrSubnetFull, hintSubnet},
	// API, server errors: "Reduce the number of addresses you are requesting or wait".
	{[]string{"InsufficientAddressCapacity"}, "", ErrSubnetFull, "EC2 has not as many addresses now: ask for fewer at once (ipBatchSize)"},
	// Not in the API's list; #1634, #2749, #3105.
	{[]string{"InsufficientCidrBlocks"}, "", ErrSubnetFull, hintFragmented},
	// #3105: CreateNetworkInterface with prefixes, of IPv4; of IPv6 nobody has seen it.
	{[]string{"InvalidParameterValue"}, "sufficient free ipv", ErrSubnetFull, hintFragmented},

	// API; #989 shows it for an ENI whose addresses somebody else has changed.
	{[]string{"PrivateIpAddressLimitExceeded", "InvalidInterface.IpAddressLimitExceeded"}, "", ErrENIFull, ""},
	// API.
	{[]string{"AttachmentLimitExceeded"}, "", ErrInstanceFull,
		"the instance has as many ENIs as its type allows: use prefixes, a larger type, or fewer pods (tool maxpods)"},
	// API.
	{[]string{"NetworkInterfaceLimitExceeded"}, "", ErrQuota,
		"delete unused ENIs (tool eni-gc), or ask AWS to raise the quota of network interfaces in this region"},
	// API; the text: amazon-vpc-resource-controller-k8s#583.
	{[]string{"SecurityGroupsPerInterfaceLimitExceeded"}, "", ErrTooManyGroups, hintGroups},
	{[]string{"InvalidParameterValue"}, "security group memberships", ErrTooManyGroups, hintGroups},

	// aws/aws-k8s-tester#531 quotes it, of an instance with several network cards.
	{[]string{"InvalidParameterValue"}, "device index exceeds the maximum number of network interfaces", ErrCardFull, ""},
	// cilium/cilium pkg/aws/eni/node.go looks for this text, and the next one.
	{[]string{"InvalidParameterValue"}, "already has an interface attached at device index", ErrIndexTaken, ""},
	{[]string{"InvalidParameterValue"}, "is not 'running'", ErrNotRunning, "the instance is stopping"},
	// API: an address, or an ENI, that is in use.
	{[]string{"Resource.AlreadyAssigned", "Resource.AlreadyAssociated", "InvalidIPAddress.InUse",
		"InvalidNetworkInterface.InUse"}, "", ErrInUse, ""},
	// API: DeleteNetworkInterface of an attached one may answer so; "in use" also for an address.
	{[]string{"InvalidParameterValue"}, "in use", ErrInUse, ""},
	{[]string{"InvalidParameterValue"}, "already assigned", ErrInUse, ""},
	// API.
	{[]string{"DependencyViolation"}, "", ErrInUse, ""},

	// API: InvalidNetworkInterfaceID.NotFound, InvalidAttachmentID.NotFound, InvalidSubnetID.NotFound and so on. Just
	// after a creation it means nothing (API Reference, "Eventual consistency").
	{[]string{"*.NotFound", "InvalidInstanceType"}, "", ErrNotFound, ""},

	// API.
	{[]string{"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"}, "", ErrDenied,
		"allow ec2:{action} in the instance role"},
	// API: the request is older than 15 minutes, by the clock of this machine.
	{[]string{"RequestExpired", "RequestTimeTooSkewed"}, "", ErrDenied, "set the clock of this machine (chronyc tracking)"},
	// API.
	{[]string{"AuthFailure", "InvalidClientTokenId", "SignatureDoesNotMatch", "MissingAuthenticationToken",
		"UnrecognizedClientException"}, "", ErrDenied,
		"EC2 does not accept the credentials: look at the instance role, AWS_ACCESS_KEY_ID in the environment, and the clock"},
	// The metadata service, which answers so in place of the role's credentials.
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
		"EC2 is unwell in this region: see health.aws.amazon.com"},
}

// The failures that EC2 has no code for.
var (
	noRole = meaning{is: ErrDenied,
		hint: "attach an instance profile whose role allows ec2:{action}"}
	noAnswer = meaning{is: ErrTransient,
		hint: "this node cannot reach the EC2 endpoint: it needs a NAT gateway, an internet gateway, or a VPC endpoint for ec2"}
	notEC2 = meaning{is: ErrTransient,
		hint: "something answers in place of EC2: look at HTTPS_PROXY, NO_PROXY, AWS_ENDPOINT_URL_EC2 and the proxies on the way"}
	serverFault = meaning{is: ErrTransient}
)

const (
	hintSubnet     = "give the VPC another subnet for pods, with the tags that subnetTags asks for"
	hintFragmented = "the subnet has no free /28: reserve a range of it for prefixes (aws ec2 create-subnet-cidr-reservation), " +
		"or add a subnet"
	hintGroups = "shorten secGroupIds, or ask AWS to raise the quota of security groups per network interface"
)
