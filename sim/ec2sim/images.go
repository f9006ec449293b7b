// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"slices"
	"time"
)

// An Image is the description of an Amazon machine image. An instance of the simulator runs no software of its image.
type Image struct {
	ID           string // ami-...
	Name         string // for example debian-13-amd64-20260601-2125
	Owner        string // ID of its account
	Architecture string // x86_64 or arm64
	Created      time.Time
}

// defaultImages are two releases of Debian, with Debian's account as owner
// (https://wiki.debian.org/Cloud/AmazonEC2Image).
var defaultImages = []Image{
	{"ami-00000000000000001", "debian-13-amd64-20260101-1000", "136693071363", "x86_64",
		time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)},
	{"ami-00000000000000002", "debian-13-amd64-20260601-1100", "136693071363", "x86_64",
		time.Date(2026, 6, 1, 11, 0, 0, 0, time.UTC)},
}

func (s *Sim) images() []Image {
	if s.cfg.Images != nil {
		return s.cfg.Images
	}
	return defaultImages
}

// imageItem is an image on the wire (API: Image).
type imageItem struct {
	ID           string `xml:"imageId"`
	State        string `xml:"imageState"`
	OwnerID      string `xml:"imageOwnerId"`
	Public       bool   `xml:"isPublic"`
	Architecture string `xml:"architecture"`
	Type         string `xml:"imageType"`
	Name         string `xml:"name"`
	Created      string `xml:"creationDate"`

	Devices set[deviceItem] `xml:"blockDeviceMapping"`
}

// deviceItem is a volume of an image on the wire (API: BlockDeviceMapping).
type deviceItem struct {
	Name                string `xml:"deviceName"`
	DeleteOnTermination bool   `xml:"ebs>deleteOnTermination"`
	Size                int    `xml:"ebs>volumeSize"`
	Type                string `xml:"ebs>volumeType"`
}

// rootDevice is the volume that DescribeImages shows for each image. The simulator has no volumes.
var rootDevice = deviceItem{Name: "/dev/xvda", DeleteOnTermination: true, Size: 8, Type: "gp3"}

type describeImagesInput struct {
	page
	ImageIDs []string `ec2:"ImageId"`
	Owners   []string `ec2:"Owner"`
}

type describeImagesOutput struct {
	head
	Images    set[imageItem] `xml:"imagesSet"`
	NextToken string         `xml:"nextToken,omitempty"`
}

// imageCatalogue is the catalogue of images (API: DescribeImages).
var imageCatalogue = catalogue[Image]{
	id: func(i Image) string { return i.ID },
	notFound: func(id string) error {
		return refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
	},
	maxPage: 1000,
	unpaged: true,
	idParam: "imageIds",
	filters: map[string]func(Image) []string{
		"architecture": func(i Image) []string { return oneValue(i.Architecture) },
		"name":         func(i Image) []string { return oneValue(i.Name) },
		"state":        func(Image) []string { return oneValue("available") },
	},
}

func (s *Sim) describeImages(in *describeImagesInput) (*describeImagesOutput, error) {
	var all []Image
	for _, i := range s.images() {
		if len(in.Owners) == 0 || slices.Contains(in.Owners, i.Owner) {
			all = append(all, i)
		}
	}
	chosen, next, err := imageCatalogue.choosePage(all, in.ImageIDs, in.page)
	if err != nil {
		return nil, err
	}
	out := &describeImagesOutput{NextToken: next}
	for _, i := range chosen {
		out.Images.Items = append(out.Images.Items, imageItem{ID: i.ID, State: "available", OwnerID: i.Owner,
			Public:       true,
			Architecture: i.Architecture, Type: "machine", Name: i.Name,
			Created: i.Created.UTC().Format("2006-01-02T15:04:05.000Z"),
			Devices: set[deviceItem]{[]deviceItem{rootDevice}}})
	}
	return out, nil
}

// placeItem is an instance type that EC2 offers in a zone, on the wire (API: InstanceTypeOffering).
type placeItem struct {
	Type         string `xml:"instanceType"`
	Location     string `xml:"location"`
	LocationType string `xml:"locationType"`
}

type describeOfferingsInput struct {
	page
	LocationType string `ec2:"LocationType"`
}

type describeOfferingsOutput struct {
	head
	Offerings set[placeItem] `xml:"instanceTypeOfferingSet"`
	NextToken string         `xml:"nextToken,omitempty"`
}

// offeringCatalogue is the catalogue of offerings of instance types (API: DescribeInstanceTypeOfferings).
var offeringCatalogue = catalogue[placeItem]{
	id:      func(p placeItem) string { return p.Type + " " + p.Location },
	maxPage: 1000,
	unpaged: true,
	filters: map[string]func(placeItem) []string{
		"instance-type": func(p placeItem) []string { return oneValue(p.Type) },
	},
}

// describeInstanceTypeOfferings answers that EC2 offers all types in each zone that has a subnet.
func (s *Sim) describeInstanceTypeOfferings(in *describeOfferingsInput) (*describeOfferingsOutput, error) {
	if in.LocationType != "availability-zone" {
		return nil, invalidValue(in.LocationType, "locationType", "The simulator knows availability zones only.")
	}
	seen := map[placeItem]bool{}
	var all []placeItem
	for _, sub := range s.cfg.Subnets {
		for name := range s.types {
			p := placeItem{name, sub.Zone, in.LocationType}
			if !seen[p] {
				seen[p], all = true, append(all, p)
			}
		}
	}
	chosen, next, err := offeringCatalogue.choosePage(all, nil, in.page)
	if err != nil {
		return nil, err
	}
	return &describeOfferingsOutput{Offerings: set[placeItem]{chosen}, NextToken: next}, nil
}
