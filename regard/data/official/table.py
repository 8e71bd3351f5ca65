"""The official files of each named set: address, size, checksum, reader, and how the splits are made of them."""

from typing import NamedTuple

from regard.data.units import format_size

__all__ = ["OFFICIAL", "Official", "OfficialFile"]

MB = 1_000_000


class OfficialFile(NamedTuple):
    """One file as its authors or a mirror publish it."""

    name: str
    urls: tuple[str, ...]  # the first that answers
    size: int  # bytes, about
    digest: str = ""  # "md5:…" or "sha256:…", where one is published; "" also for files that change over time
    limit: int = 0  # bytes that a download may have, if more than 1.5 times the size: for files that grow


class Official(NamedTuple):
    """All official files of a set, and what becomes of them."""

    reader: str  # module of regard.data.official
    gives: tuple[str, ...]  # the files of the set, as `regard.data.sources` names them
    files: tuple[OfficialFile, ...]
    splits: str  # how they are made
    same: bool  # whether these are the images, texts or sounds that the scores of the recipes were measured on

    @property
    def size(self) -> int:
        """Bytes to download, about."""
        return sum(file.size for file in self.files)

    @property
    def summary(self) -> str:
        """Size and server, for people."""
        servers = dict.fromkeys(file.urls[0].split("/")[2] for file in self.files)
        return f"about {format_size(self.size)} from {' and '.join(servers)}"


_TABLES = ("train.npz", "test.npz")
_THREE = ("train", "valid", "test")
_TSV = tuple(f"{split}.tsv.gz" for split in _THREE)
_IDX = {  # file → bytes, md5 of MNIST; bytes, md5 of Fashion-MNIST
    "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
}
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_FASHION = ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",)
_SST2 = "https://raw.githubusercontent.com/YJiangcm/SST-2-sentiment-analysis/ca3869fa59a56d316e73b41074abcb0226886de8/data/"
_AGNEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
_WORDSIM = "https://raw.githubusercontent.com/mfaruqui/eval-word-vectors/94b3dd9fdbac7ed08dbee7179cd5ee464acf0594/data/word-sim/"
_FLOWERS = "https://storage.googleapis.com/download.tensorflow.org/example_images/"
_FLICKR8K = "https://github.com/jbrownlee/Datasets/releases/download/Flickr8k/"
_SST2_FILES = (
    ("train", 739_269, "sha256:c03c87950a0899af1be7eba8801180619879b2340b5800eb4dbe9a3ce353e004"),
    ("dev", 94_452, "sha256:c9ddb67ce3068540c5bb6562e1f34788302dd06d570e6ca0d5e61f7d5ef2bfad"),
    ("test", 193_646, ""),
)
_RATINGS = {"wordsim353.tsv": ("EN-WS-353-ALL.txt", 7_000, ""), "wordsim353-similarity.tsv": ("EN-WS-353-SIM.txt", 4_000, ""),
            "wordsim353-relatedness.tsv": ("EN-WS-353-REL.txt", 5_100, ""), "simlex999.tsv": ("EN-SIMLEX-999.txt", 18_000, ""),
            "men3000.tsv": ("EN-MEN-TR-3k.txt", 53_593,
                            "sha256:888b13580faa362c7b11da0a670258cf1b1eb4bf0ecbcd418918729a3bd3f43a"),
            "rg65.tsv": ("EN-RG-65.txt", 1_200, "")}  # fmt: skip


def _manythings(code: str, size: int) -> Official:
    file = OfficialFile(f"{code}-eng.zip", (f"https://www.manythings.org/anki/{code}-eng.zip",), size, limit=200 * MB)
    part = "a tenth" if code == "hin" else "a hundredth"
    rule = (f"by the MD5 of the English in lower case without punctuation, {part} each for valid and test; of these, pairs "
            "whose other side is in train are removed")  # fmt: skip
    return Official("manythings", _TSV, (file,), rule, same=False)


OFFICIAL: dict[str, Official] = {
    **{f"tatoeba-en-{language}": _manythings(code, size) for language, code, size in
       (("it", "ita", 8 * MB), ("de", "deu", 11 * MB), ("fr", "fra", 8 * MB), ("hi", "hin", MB // 5))},
    "mnist": Official(
        "idx", _TABLES, tuple(OfficialFile(name, tuple(at + name for at in _MNIST), size, f"md5:{md5}")
                              for name, (size, md5, _, _) in _IDX.items()),
        "the official ones, of each digit the first 1,200 and 300 by the MD5 of their names in rasbt/mnist-pngs; 1,000 of train "
        "are valid",
        same=True),
    "fashion-mnist": Official(
        "idx", _TABLES, tuple(OfficialFile(name, tuple(at + name for at in _FASHION), size, f"md5:{md5}")
                              for name, (_, _, size, md5) in _IDX.items()),
        "the official ones, of each class the first 2,000 and 500 by the MD5 of their names in Sentdex/nnfs_book; 1,000 of train "
        "are valid",
        same=True),
    "cifar10": Official(
        "cifar", _TABLES,
        (OfficialFile("cifar-10-binary.tar.gz", ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), 170_052_171,
                      "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        "the official ones; 5,000 of train are valid.  Pixels are lossless; the prepared set has JPEG files", same=False),
    "sst2": Official(
        "sst2", _TSV, tuple(OfficialFile(f"{split}.tsv", (f"{_SST2}{split}.tsv",), size, digest)
                            for split, size, digest in _SST2_FILES),
        "the official ones, whole sentences", same=True),
    "agnews-small": Official(
        "agnews", _TSV, (OfficialFile("test.csv", (f"{_AGNEWS}test.csv",), 1_857_427, limit=8 * MB),),
        "the 7,600 official test rows in the order of their MD5: 800 valid, 800 test, the others train", same=False),
    "wordsim": Official(
        "ratings", tuple(_RATINGS), tuple(OfficialFile(name, (_WORDSIM + name,), size, digest)
                                          for name, size, digest in _RATINGS.values()),
        "for testing only", same=True),
    "flowers5": Official(
        "photos", ("train.npz", "valid.npz", "test.npz"),
        (OfficialFile("flower_photos.tgz", (f"{_FLOWERS}flower_photos.tgz",), 228_813_984,
                      "sha256:4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c"),),
        "a fifth of each class is test, by numpy's RandomState(42); of the others a tenth is valid, by the MD5 of the path",
        same=False),
    "ants-bees": Official(
        "photos", _TABLES,
        (OfficialFile("hymenoptera_data.zip", ("https://download.pytorch.org/tutorial/hymenoptera_data.zip",), 47_286_322,
                      "sha256:fbc41b31d544714d18dd1230b1e2b455e1557766e13e67f9f5a7a23af7c02209"),),
        "the official train and val, without copies; 43 of train are valid", same=False),
    "flickr8k": Official(
        "flickr8k", tuple(f"{split}_{what}" for split in _THREE for what in ("images.zip", "captions.tsv.gz")),
        (OfficialFile("Flickr8k_Dataset.zip", (f"{_FLICKR8K}Flickr8k_Dataset.zip",), 1_115_419_746,
                      "md5:f18a1e2920de5bd84dae7cf08ec78978"),
         OfficialFile("Flickr8k_text.zip", (f"{_FLICKR8K}Flickr8k_text.zip",), 2_340_801,
                      "md5:bf6c1abcb8e4a833b7f922104de18627")),
        "the official lists of 6,000, 1,000 and 1,000 photos, scaled to 128 × 128", same=False),
    "fsdd": Official(
        "fsdd", tuple(f"{split}_{what}" for split in _THREE for what in ("audio.npy.xz", "index.tsv.gz")),
        (OfficialFile("free-spoken-digit-dataset-1.0.10.tar.gz",
                      ("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/v1.0.10.tar.gz",), 16_400_000),),
        "recordings 0 to 4 of each digit and speaker are test, the official rule; 5 to 9 are valid", same=True),
    "an4-mfcc": Official(
        "an4", tuple(f"{split}.{ending}" for split in _THREE for ending in ("npz", "tsv.gz")),
        (OfficialFile("an4_sphere.tar.gz", ("https://dldata-public.s3.us-east-2.amazonaws.com/an4_sphere.tar.gz",
                                            "https://huggingface.co/datasets/espnet/an4/resolve/main/an4_sphere.tar.gz"),
                      64_327_561, "sha256:a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12"),),
        "the official ones; six speakers of train are valid.  Cepstra are computed from the recordings; the prepared set "
        "has those that CMU distributes, which differ slightly", same=False),
    "yesno": Official(
        "yesno", ("audio.npy.xz", "index.tsv.gz"),
        (OfficialFile("waves_yesno.tar.gz", ("https://www.openslr.org/resources/1/waves_yesno.tar.gz",), 4_703_754,
                      "sha256:c3f49e0cca421f96b75b41640749167b52118f232498667ca7a5f9416aef8e73"),),
        "files sorted by name: of every six the third is valid, the sixth test", same=True),
}  # fmt: skip
